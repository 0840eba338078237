"""Faults that strike a job, and the suspect that `harp diagnose` has to name.

One table serves the laboratory and packets in virtual time: both implement `Network`
(lab_job.py, packet_job.py), and a case draws the place and the strength of the fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from harp.cli.diagnose.snapshot import Report
    from harp.cli.diagnose.suspects import Suspect

NAMES = "abcdefghij"
"""Of hosts."""
PORTS = (0, 1)


def address(host: int, port: int) -> str:
    """Of a host's port, in the network of its ToR."""
    return f"10.0.{port + 1}.{host + 1}"


class Load(NamedTuple):
    """Messages from one host to another."""

    source: int
    target: int
    message_bytes: int = 64 << 10
    most_bps: float = float("inf")
    """On average."""
    on_s: float = 0.0
    """Duration of a burst,"""
    off_s: float = 0.0
    """and of the pause after it; 0: no pauses."""

    def sends(self, now_s: float, sent_bytes: int) -> bool:
        """Whether it begins another message, after ``sent_bytes`` in ``now_s``."""
        if self.off_s and now_s % (self.on_s + self.off_s) > self.on_s:
            return False
        return sent_bytes * 8 <= self.most_bps * now_s


class Network(Protocol):
    """Hosts with two ports, each at a ToR of its own, under a job."""

    hosts: int

    def set_cable(self, host: int, port: int, *, up: bool) -> None:
        """Pull a cable, or plug it in."""

    def set_rate(self, host: int, port: int, share: float) -> None:
        """Let the ToR send to a host at a share of the rate."""

    def lose(self, host: int, port: int, share: float) -> None:
        """Lose a share of a host's packets."""

    def lose_arriving(self, host: int, port: int, share: float) -> None:
        """Lose a share of the packets to a host."""

    def corrupt(self, host: int, port: int, share: float) -> None:
        """Corrupt a share of a host's packets."""

    def shrink_mtu(self, host: int, port: int, nbytes: int) -> None:
        """Drop a host's longer packets silently."""


class Job(Protocol):
    """Traffic that goes on."""

    def run(self, seconds: float, then: Callable[[float], object]) -> None:
        """Let time pass; ``then`` is called with it, again and again."""

    def reports(self, then: Callable[[float], object]) -> Sequence[Report]:
        """Look at all hosts; ``then`` is called with the time in between, again and again."""


class Said(NamedTuple):
    """The suspect that has to be named."""

    kind: str
    name: str
    """A part of its name."""
    way: str
    symptom: str
    """A part of it."""
    ways: tuple[str, ...] = ()
    """Others that are right as well."""

    def fits(self, suspect: Suspect) -> bool:
        """Whether a suspect is this one."""
        return (suspect.kind == self.kind and suspect.way in {self.way, *self.ways}
                and self.name in suspect.name and self.symptom in suspect.symptom)


class Strike(NamedTuple):
    """One fault at one place."""

    text: str
    do: Callable[[Network], object]
    said: Said
    again: Callable[[Network, float], object] = lambda _, __: None
    """Called with the time since then, again and again."""


def _port(host: int, port: int) -> str:
    return f"({address(host, port)}) of {NAMES[host]}"


def link_down(host: int, port: int, _: random.Random) -> Strike:
    """A cable is pulled."""
    return Strike("link down", lambda net: net.set_cable(host, port, up=False),
                  Said("port", _port(host, port), "both", NOTHING))


def link_flaps(host: int, port: int, chance: random.Random) -> Strike:
    """A cable is pulled and plugged in again and again."""
    half_s = chance.uniform(0.1, 0.25)
    return Strike(f"link flaps each {half_s:.2f} s", lambda _: None,
                  Said("port", _port(host, port), "both", ""),
                  lambda net, now_s: net.set_cable(host, port, up=now_s // half_s % 2 == 1))


def link_slow(host: int, port: int, chance: random.Random) -> Strike:
    """A ToR's port has a share of its rate."""
    share = chance.uniform(0.15, 0.5)
    return Strike(f"link at {share:.0%}", lambda net: net.set_rate(host, port, share),
                  Said("port", _port(host, port), "in", "is slower than others like it",
                       ("both",)))  # answers to what the host sends stand in that queue, too


def loss(host: int, port: int, chance: random.Random) -> Strike:
    """A cable loses packets in one direction."""
    share = chance.uniform(0.01, 0.05)
    return Strike(f"{share:.1%} lost, outbound", lambda net: net.lose(host, port, share),
                  Said("port", _port(host, port), "out", "packets"))


def loss_arriving(host: int, port: int, chance: random.Random) -> Strike:
    """The same in the other one."""
    share = chance.uniform(0.01, 0.05)
    return Strike(f"{share:.1%} lost, inbound", lambda net: net.lose_arriving(host, port, share),
                  Said("port", _port(host, port), "in", "packets"))


def corruption(host: int, port: int, chance: random.Random) -> Strike:
    """Bits flip."""
    share = chance.uniform(0.01, 0.05)
    return Strike(f"{share:.1%} corrupted", lambda net: net.corrupt(host, port, share),
                  Said("port", _port(host, port), "out", "packets"))


def tor_lost(_: int, port: int, __: random.Random) -> Strike:
    """All cables of a ToR are dead."""
    def do(net: Network) -> None:
        for host in range(net.hosts):
            net.set_cable(host, port, up=False)
    return Strike("ToR lost", do, Said("network", f"10.0.{port + 1}.0/24", "both", NOTHING))


def hole_arriving(host: int, port: int, _: random.Random) -> Strike:
    """Nothing arrives, though the link is up."""
    return Strike("black hole, inbound", lambda net: net.lose_arriving(host, port, 1),
                  Said("port", _port(host, port), "in", NOTHING))


def hole(host: int, port: int, _: random.Random) -> Strike:
    """Nothing gets out."""
    return Strike("black hole, outbound", lambda net: net.lose(host, port, 1),
                  Said("port", _port(host, port), "out", NOTHING))


def short_mtu(host: int, port: int, chance: random.Random) -> Strike:
    """A cable takes shorter packets than it took."""
    nbytes = chance.randrange(900, 1400)
    return Strike(f"MTU {nbytes}, untold", lambda net: net.shrink_mtu(host, port, nbytes),
                  Said("port", _port(host, port), "out", "drops long packets"))


NOTHING = "carries nothing"
FAULTS = (link_down, link_flaps, link_slow, loss, loss_arriving, corruption, tor_lost,
          hole_arriving, hole, short_mtu)


def is_right(strikes: Sequence[Strike], suspects: Sequence[Suspect]) -> bool:
    """Whether all struck parts were named, and nothing else."""
    def may_be(suspect: Suspect) -> bool:
        """One of two indistinguishable ones, as a host and its last live port."""
        return suspect.confidence <= 0.5 and any(
            strike.said.name.endswith(f" {suspect.host}") for strike in strikes)

    return (all(any(strike.said.fits(suspect) for suspect in suspects) for strike in strikes)
            and all(may_be(suspect) or any(strike.said.fits(suspect) for strike in strikes)
                    for suspect in suspects))
