"""Target values of a host's knobs for ``harp setup``, and remarks.

This module changes nothing. It lists all wanted values, including those that are set already, so
that a run after the changes finds nothing left to do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harp._cnet import lib
from harp.cli import conf
from harp.cli.setup import choose, huge_pages
from harp.cli.setup.knobs import Conf, File, Irq, Knob, Mtu, Queues, Rings
from harp.net import nics

if TYPE_CHECKING:
    from harp.cli.setup.host_access import Host
    from harp.net.nics import Nic

RING_DESCRIPTORS = 4096
"""The number of receive frames that the xdp port gives a card."""
ONE_BUFFER_BYTES = 3498
"""The largest MTU for XDP with drivers that need a packet in one page."""

NEIGHBOUR_MS = 100
"""Time between two solicitations of a neighbour's Ethernet address. With the kernel's default of
1 s (RFC 4861, RETRANS_TIMER), a port that comes back waits up to 1 s for the next one."""


@dataclass(frozen=True)
class Wishes:
    """The user's options."""

    nics: list[Nic]
    mtu: int | None = None
    queues: int | None = None
    pages_gib: int | None = None


@dataclass
class Plan:
    """Knobs with their target values, in order, and remarks for the user."""

    targets: list[tuple[Knob, str | None]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def plan(host: Host, wishes: Wishes, tried: set[str]) -> Plan:
    """List the targets of a host; ``tried`` are the keys of knobs that were set already."""
    made = Plan(remarks=[f"NICs: {', '.join(nic.name for nic in wishes.nics)}"])
    there = {nic.name: nic for nic in host.nics()}
    cards = [there[card] for nic in wishes.nics for card in choose.members(host, nic.name)]
    if wishes.mtu:
        made.targets += [(Mtu(nic.name), str(wishes.mtu)) for nic in wishes.nics]
    engines = -(-nics.gpus(host.root) // len(cards))
    for card in cards:
        _card(host, wishes, card, engines, made)
    for place, card in enumerate(cards):
        made.targets += _interrupts(host, card.name, place)
    if any(host.read(comm) == "irqbalance\n" for comm in host.find("/proc/[0-9]*/comm")):
        made.remarks.append("irqbalance is running and will move these interrupts: systemctl "
                            "disable --now irqbalance")
    huge_pages.add(host, [node_of(host, nic.name) for nic in wishes.nics], wishes.pages_gib, tried,
              made.targets, made.remarks)
    made.targets += _sockets(host)
    made.targets += [target for nic in wishes.nics for target in _neighbours(host, nic.name)]
    made.targets.append(_settings(wishes.nics))
    return made


def node_of(host: Host, name: str) -> int | None:
    """Give the NUMA node of a card, or of a bond's first; None if it has none of its own."""
    card = choose.members(host, name)[0]
    node = host.number(f"/sys/class/net/{card}/device/numa_node")
    return node if node is not None and node >= 0 else None


def _card(host: Host, wishes: Wishes, nic: Nic, engines: int, made: Plan) -> None:
    """Add queues, rings and steering of a card that ``engines`` share, as far as known."""
    # The XDP features of an interface change with its queues; those of its driver do not. The
    # xdp port does not look through a bond.
    xdp = (nic.driver in {*nics.ZERO_COPY, *nics.NATIVE} or nic.xdp in {"native", "zero copy"}) \
        and any(nic.name == wished.name for wished in wishes.nics)
    queues = 1
    if channels := host.channels(nic.name):
        wanted = _queues(channels, nic.driver if xdp else None, wishes.queues or engines * xdp)
        queues = wanted.get("combined") or wanted.get("rx") or 1
        made.targets.append((Queues(nic.name), _words(wanted)))
    if rings := host.rings(nic.name):
        made.targets.append((Rings(nic.name), _words(
            {kind: max(now, min(RING_DESCRIPTORS, most))
             for kind, (now, most) in rings.items()})))
    rules = "takes rules" if nic.ntuple in {"on", "off"} else "takes no rules"
    steering = "the kernel's" if not xdp else "one queue, no steering needed" if queues == 1 else \
        f"by source port, 1 of {queues} meets an engine's queue"
    made.remarks.append(f"{nic.name}: {nic.driver or 'driver unknown'}, XDP {nic.xdp or 'unknown'};"
                        f" steering: {steering} (the driver {rules})")
    if xdp and nic.several_buffers is False and (wishes.mtu or nic.mtu) > ONE_BUFFER_BYTES:
        made.remarks.append(f"{nic.name}: its driver takes one buffer per packet: for xdp, --mtu "
                            f"{ONE_BUFFER_BYTES}")
    elif xdp and nic.xdp == "zero copy" and (wishes.mtu or nic.mtu) > nics.ZERO_COPY_MTU_BYTES:
        made.remarks.append(f"{nic.name}: newer kernels have zero copy up to --mtu "
                            f"{nics.ZERO_COPY_MTU_BYTES}")


def _queues(channels: dict[str, tuple[int, int]], driver: str | None, asked: int) -> dict[str, int]:
    """Queues by kind: as many as are asked for, else as there are, and no more than XDP can have.

    ``driver`` is None where XDP does not count.
    """
    kinds = {"combined"} & channels.keys() or channels.keys()
    most = nics.usable_queues(driver, min(channels[kind][1] for kind in kinds))
    if not asked and driver is None:
        return {kind: now for kind, (now, _) in channels.items()}
    count = min(asked or max(channels[kind][0] for kind in kinds), most)
    # Other queues than the combined ones are left to the driver.
    return {kind: count if kind in kinds else now for kind, (now, _) in channels.items()}


def _words(counts: dict[str, int]) -> str:
    return " ".join(f"{kind} {count}" for kind, count in counts.items())


def _interrupts(host: Host, card: str, place: int) -> list[tuple[Knob, str | None]]:
    """Each interrupt of a card on a CPU of its node, the next card's on the next CPUs."""
    device = f"/sys/class/net/{card}/device"
    numbers = {path.rpartition("/")[2] for above in ("", "/..")  # a virtio device's are its bus's
               for path in host.find(f"{device}{above}/msi_irqs/*")}
    cpus = _cpus(host, node_of(host, card))
    targets: list[tuple[Knob, str | None]] = []
    for number in sorted(numbers, key=int):
        names = [path.split("/")[-2] for path in host.find(f"/proc/irq/{number}/*/")]
        if names and cpus:
            targets.append((Irq(names[0]), str(cpus[(place * len(numbers) + len(targets))
                                                    % len(cpus)])))
    return targets


def _cpus(host: Host, node: int | None) -> list[int]:
    text = host.read(f"/sys/devices/system/node/node{node}/cpulist") if node is not None else None
    text = text or host.read("/sys/devices/system/cpu/online") or ""
    return [cpu for first, last in re.findall(r"(\d+)(?:-(\d+))?", text)
            for cpu in range(int(first), int(last or first) + 1)]


def _sockets(host: Host) -> list[tuple[Knob, str | None]]:
    files = [f"/proc/sys/net/core/{name}" for name in ("rmem_max", "wmem_max")]
    return [(File(file), str(max(lib.HARP_SOCKET_BYTES, now))) for file in files
            if (now := host.number(file)) is not None and host.may_be_written(file)]


def _neighbours(host: Host, name: str) -> list[tuple[Knob, str | None]]:
    files = [f"/proc/sys/net/{family}/neigh/{name}/retrans_time_ms" for family in ("ipv4", "ipv6")]
    return [(File(file), str(min(NEIGHBOUR_MS, now))) for file in files
            if (now := host.number(file)) is not None and host.may_be_written(file)]


def _settings(cards: list[Nic]) -> tuple[Knob, str]:
    """Give the plugin's settings: which cards."""
    return (Conf(str(conf.path().absolute())),
            f"HARP_IFNAME=={','.join(nic.name for nic in cards)}\n")
