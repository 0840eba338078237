"""Huge pages: 5 GiB for each card and 10 GiB more, on the NUMA nodes of the cards.

The amount is the one that TACO Train's deployment guide recommends. Pages of 1 GiB are asked for
first; where memory is too fragmented for them, pages of 2 MiB make up the rest.
SMALL_GIB of each node are 2 MiB pages in any case: an engine's memory is some 32 MiB, and it takes
no 1 GiB page that it would leave nearly empty. Existing pages count, and none are taken
away.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from harp.cli.setup.knobs import Knob, Pages

if TYPE_CHECKING:
    from harp.cli.setup.host_access import Host

CARD_GIB, BASE_GIB, SMALL_GIB = 5, 10, 2
LARGE, SMALL = "hugepages-1048576kB", "hugepages-2048kB"
SMALL_A_GIB = 512
_KIB_A_GIB = 1 << 20


def add(host: Host, of_cards: list[int | None], asked_gib: int | None, tried: set[str],
        targets: list[tuple[Knob, str | None]], remarks: list[str]) -> None:
    """Add the pages that are to be there to the targets."""
    if asked_gib == 0:
        return
    weights = _weights(host, of_cards)
    pools = {node: _Pools(host, node) for node in weights}
    have_gib = sum(pool.have_gib() for pool in pools.values())
    wanted_gib = asked_gib or sum(weights.values())
    most_gib = _most_gib(host, have_gib)
    if wanted_gib > most_gib:
        asked = "" if asked_gib else f"{len(of_cards)} x {CARD_GIB} + {BASE_GIB} = "
        short = (f"huge pages: {asked}{wanted_gib} GiB are wanted, but only {most_gib} GiB are "
                 "possible with the existing ones")
        if asked_gib:
            raise click.ClickException(f"{short}: use --hugepages {most_gib}, or 0 for none")
        remarks.append(f"{short}; these are used, and fewer work too (--hugepages GIB)")
        # Free memory differs a little from run to run; for that nothing is changed again.
        wanted_gib = int(have_gib) if have_gib >= 1 and most_gib - have_gib <= 1 else most_gib
    left_gib = wanted_gib
    for place, (node, weight) in enumerate(weights.items()):
        last = place == len(weights) - 1
        share_gib = left_gib if last else wanted_gib * weight // sum(weights.values())
        left_gib -= share_gib
        targets += pools[node].targets(share_gib, tried)
    if not any(pool.exist() for pool in pools.values()):
        remarks.append("huge pages: this kernel has none")


def _weights(host: Host, of_cards: list[int | None]) -> dict[int | None, int]:
    """GiB wanted by node; None is a host without nodes."""
    there: list[int | None] = [int(path.rpartition("node")[2]) for path in
                               host.find("/sys/devices/system/node/node[0-9]*")] or [None]
    there.sort(key=lambda node: node or 0)
    nodes = [node if node in there else there[place % len(there)]
             for place, node in enumerate(of_cards)]
    used = [node for node in there if node in nodes]
    return {node: nodes.count(node) * CARD_GIB + BASE_GIB // len(used)
            + (place < BASE_GIB % len(used)) for place, node in enumerate(used)}


def _most_gib(host: Host, have_gib: float) -> int:
    """GiB that can be huge pages, those that are already counted: an eighth stays free."""
    text = host.read("/proc/meminfo") or ""
    total, available = (int(found[1]) if (found := re.search(rf"^{name}:\s*(\d+)", text, re.M))
                        else 0 for name in ("MemTotal", "MemAvailable"))
    return int(have_gib + max(0, available - total // 8) / _KIB_A_GIB)


class _Pools:
    """The pages of one node."""

    def __init__(self, host: Host, node: int | None) -> None:
        folder = "/sys/kernel/mm/hugepages" if node is None else \
            f"/sys/devices/system/node/node{node}/hugepages"
        self.knobs = {size: Pages(f"{folder}/{size}/nr_hugepages") for size in (LARGE, SMALL)}
        self.counts = {size: host.number(knob.of) for size, knob in self.knobs.items()}

    def exist(self) -> bool:
        return any(count is not None for count in self.counts.values())

    def have_gib(self) -> float:
        return (self.counts[LARGE] or 0) + (self.counts[SMALL] or 0) / SMALL_A_GIB

    def targets(self, share_gib: int, tried: set[str]) -> list[tuple[Knob, str | None]]:
        """Pages that this node shall have in sum."""
        large, small = self.counts[LARGE], self.counts[SMALL]
        if small is None and large is None:
            return []
        if large is not None and self.knobs[LARGE].key not in tried:
            keep = share_gib if small is None else \
                max(0, share_gib - max(SMALL_GIB, small // SMALL_A_GIB))
            large = max(large, keep)
        if small is not None:
            small = max(small, (share_gib - (large or 0)) * SMALL_A_GIB)
        return [(self.knobs[size], str(count)) for size, count in ((LARGE, large), (SMALL, small))
                if count is not None]
