"""The way back: of the source ports that yield a flow's path, those by which answers spread.

Answers (ACKs) go by the reversed five-tuple, so a flow's source port chooses their way as well.
They are a hundredth of the data, but those of many flows on one link slow down the flow whose data
that link carries: three of four flows' answers took 4 % of a link in the lab. Where several ports
yield the same path, each flow in turn takes the one whose answers cross the least loaded links.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from harp.routing.fabric import UnreachableError
from harp.routing.source_ports import follows, wanted_hops

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric
    from harp.routing.source_ports import FlowPorts

    Ints = NDArray[np.int64]

MOST_FLOWS = 1 << 14
"""Answers of more flows spread by chance."""
TRIED, ALTERNATIVES = 128, 8
"""Ports of a flow that are hashed, and those of them that are compared, at most."""
DATA_ANSWERS = 100
"""Answers that load a link as much as the data of a flow: 0.7 % of the bytes in the lab."""


def spread_acks(fabric: Fabric, src: Ints, dst: Ints, path: Ints, port: Ints, free: Ints,
                   ports: FlowPorts) -> Ints:
    """Give the ``free`` flows other source ports that yield the same ``path``.

    That has shape (flows, links). The others keep their ``port``, and so do all where some answer
    has no way back.
    """
    if not free.size or src.size > MOST_FLOWS:
        return port
    try:
        return _spread(fabric, src, dst, path, port, free, ports)
    except UnreachableError:
        return port


def _spread(fabric: Fabric, src: Ints, dst: Ints, path: Ints, port: Ints, free: Ints,
            ports: FlowPorts) -> Ints:
    load = DATA_ANSWERS * np.bincount(path[path >= 0], minlength=len(fabric.link_src))
    settled = np.setdiff1d(np.arange(src.size), free)
    _, links = _ways_back(fabric, src[settled], dst[settled], port[settled], ports.take(settled))
    load += np.bincount(links, minlength=load.size)

    flow, other = _alternatives(fabric, src[free], dst[free], path[free], port[free],
                                ports.take(free))
    ptr, links = _ways_back(fabric, src[free][flow], dst[free][flow], other,
                            ports.take(free[flow]))
    bounds = np.searchsorted(flow, np.arange(free.size + 1))
    found = port.copy()
    for number, (first, end) in enumerate(pairwise(bounds.tolist())):
        ways = [links[ptr[one]:ptr[one + 1]] for one in range(first, end)]
        best = min(range(len(ways)), key=lambda one: load[ways[one]].sum())
        load[ways[best]] += 1
        found[free[number]] = other[first + best]
    return found


def _alternatives(fabric: Fabric, src: Ints, dst: Ints, path: Ints, port: Ints,
                  ports: FlowPorts) -> tuple[Ints, Ints]:
    """Ports that yield each flow's path: its number and the port, its own first."""
    tried = ports.candidates(np.arange(min(TRIED, int(ports.count.max()))))
    good = follows(fabric, src, dst, wanted_hops(fabric, dst, path), tried, ports)
    good &= tried != port[:, None]
    good &= np.cumsum(good, axis=1) < ALTERNATIVES
    tried = np.column_stack([port, tried])
    flow, which = np.nonzero(np.column_stack([np.ones(len(port), np.bool_), good]))
    return flow, tried[flow, which]


def _ways_back(fabric: Fabric, src: Ints, dst: Ints, port: Ints,
               ports: FlowPorts) -> tuple[Ints, NDArray[np.int32]]:
    return fabric.route(fabric.flows(dst, src, ports.target, port))
