"""Scenes: faults of a network of two hosts with two ports each, and their targets.

A scene is a list of moments. Each changes the network, and from then on traffic has to reach a
share of the remaining goodput within a time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    Action = Callable[["Network"], None]

PORT = 1
"""The port that faults strike; the other one, 0, is well all the time."""
WARM_S = 0.3
"""From the start of traffic to the first moment."""


class Network(Protocol):
    """Two hosts, each with a port at each of two ToRs; data goes from one host to the other."""

    def set_cable(self, *, up: bool) -> None:
        """Pull or plug in the cable between the sender's port and its ToR."""

    def set_tor(self, *, up: bool) -> None:
        """Switch the ToR of the port off or on: both hosts lose their links to it."""

    def remove_nic(self) -> None:
        """Let the sender's NIC vanish, for ever."""

    def set_rate(self, share: float) -> None:
        """Let the ToR's port to the receiver send at a share of its rate."""

    def lose(self, share: float, *, answers: bool = False) -> None:
        """Drop a share of the data, or of its ACKs, at the ToR."""

    def corrupt(self, share: float) -> None:
        """Flip a bit in a share of the data's packets at the ToR."""

    def shrink_mtu(self, nbytes: int) -> None:
        """Drop IP packets of more than ``nbytes`` at the ToR, silently."""

    def reorder(self, share: float) -> None:
        """Let a share of the data's packets be overtaken at the ToR; 0: none."""

    def slow_receiver(self, share: float) -> None:
        """Let the receiver take no more than a share of both ports' goodput."""


class Moment(NamedTuple):
    """A change of the network, and the target after it."""

    at_s: float
    """From the start of traffic."""
    what: str
    action: Action
    remains: float
    """Share of both ports' goodput that is left from now on."""
    target: float = 0.9
    """Share of what remains that traffic must reach,"""
    within_s: float = 0.1
    """within this time, to stay."""
    noticed_s: float = 0.05
    """Within this time something was sent again, or traffic is at its target already."""


class Scene(NamedTuple):
    """One row of the table, or two: a fault and its end."""

    name: str
    moments: tuple[Moment, ...]
    end_s: float
    tcp: str = "tcp"
    """Kernel TCP beside: two flows that were hashed to both ports, or to one of them by a bond's
    policy: ``tcp-2+3``, ``tcp-3+4``."""
    fluid: bool = False
    """Whether fidelity flow has it."""


def _once(name: str, action: Action, remains: float, *, fluid: bool = False,
          lasts_s: float = 0.6) -> Scene:
    return Scene(name, (Moment(WARM_S, name, action, remains),), WARM_S + lasts_s, fluid=fluid)


def _nothing(_: Network) -> None:
    """Change nothing: both ports are well."""


def _flaps(times: int, step_s: float) -> tuple[Moment, ...]:
    """The cable pulled and plugged in again; what remains all the time is the other port."""
    begin = Moment(WARM_S, "flap", partial(_set_cable, up=False), 0.5)
    rest = [Moment(WARM_S + step_s * step, "", partial(_set_cable, up=bool(step % 2)), 0.5)
            for step in range(1, 2 * times)]
    return begin, *rest


def _set_cable(net: Network, *, up: bool) -> None:
    net.set_cable(up=up)


HASHED = tuple(
    Scene(f"both ports, LACP {policy} beside", (
        Moment(WARM_S, f"both ports; TCP: {policy}", _nothing, 1.0, 0.95, 0.3, 0.3),), WARM_S + 0.9,
        f"tcp-{policy}") for policy in ("2+3", "3+4"))
PULLED = Scene("port pulled", (
    Moment(WARM_S, "port pulled", partial(_set_cable, up=False), 0.5),
    Moment(WARM_S + 0.5, "port back", partial(_set_cable, up=True), 1.0, 0.95, 0.2, 0.2)),
    WARM_S + 1.2, fluid=True)
DEGRADED = Scene("port at 40 %", (
    Moment(WARM_S, "port at 40 %", lambda net: net.set_rate(0.4), 0.7, 0.95, 0.05),),
    WARM_S + 0.6, fluid=True)
NCCL = tuple(
    Scene(f"NCCL client, TCP {way}", tuple(
        moment._replace(what=f"NCCL: {moment.what}; TCP {way}") for moment in PULLED.moments),
        PULLED.end_s, tcp) for way, tcp in (("hashed", "tcp"), ("by NIC 1", "tcp-nic")))
"""The same under the client of lab/nccl_client, in the lab. TCP's sockets are hashed over
both ports, or have the address of NIC 1, as NCCL's own have."""
TWO_PORTS = (*HASHED, DEGRADED, PULLED)
"""Aggregation of two ports."""

FAULTS = (
    _once("link down", partial(_set_cable, up=False), 0.5, fluid=True),
    Scene("link flaps", _flaps(5, 0.06), WARM_S + 0.6, fluid=True),
    _once("link degraded to 40 %", lambda net: net.set_rate(0.4), 0.7, fluid=True),
    _once("1 % of packets corrupted", lambda net: net.corrupt(0.01), 0.995, fluid=True),
    _once("ToR lost", lambda net: net.set_tor(up=False), 0.5, fluid=True),
    # Buffers that the receiver had ready are full after half a second, and hide what comes late.
    _once("one host at half speed", lambda net: net.slow_receiver(0.5), 0.5, fluid=True,
          lasts_s=1.2),
    _once("NIC port lost", lambda net: net.remove_nic(), 0.5, fluid=True),
    _once("2 % of data, no answers lost", lambda net: net.lose(0.02), 0.99, fluid=True),
    _once("5 % of data, no answers lost", lambda net: net.lose(0.05), 0.975, fluid=True),
    _once("black hole for data", lambda net: net.lose(1), 0.5, fluid=True),
    _once("black hole for answers", lambda net: net.lose(1, answers=True), 0.5, fluid=True),
    _once("MTU 1280, untold", lambda net: net.shrink_mtu(1280), 1.0),
    _once("10 % of packets late", lambda net: net.reorder(0.1), 1.0),
)
"""The matrix. Every one strikes port 1, or the receiver."""
