"""Source ports that spread ACKs: a choice among the ports that yield a flow's path.

ACKs use the reversed five-tuple, so a flow's source port selects their path too. They are a
hundredth of the data, but ACKs of many flows on one link slow down the flow that sends data over
it: the ACKs of three of four flows took 4 % of a link in the lab. Where several ports yield the
same path, each flow in turn takes the port whose ACKs cross the least loaded links.
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
"""With more flows, ACKs spread by chance."""
TRIED, ALTERNATIVES = 128, 8
"""Most ports per flow that are hashed, and that are compared."""
DATA_ACKS = 100
"""Flows of ACKs that load a link like the data of one flow; ACKs are 0.7 % of bytes in the lab."""


def spread_acks(fabric: Fabric, src: Ints, dst: Ints, path: Ints, port: Ints, free: Ints,
                   ports: FlowPorts) -> Ints:
    """Give the ``free`` flows other source ports that yield the same ``path``.

    ``path`` has shape (flows, links). Other flows keep their ``port``; all flows do if
    some ACK has no route.
    """
    if not free.size or src.size > MOST_FLOWS:
        return port
    try:
        return _spread_one_by_one(fabric, src, dst, path, port, free, ports)
    except UnreachableError:
        return port


def _spread_one_by_one(fabric: Fabric, src: Ints, dst: Ints, path: Ints, port: Ints, free: Ints,
            ports: FlowPorts) -> Ints:
    load = DATA_ACKS * np.bincount(path[path >= 0], minlength=len(fabric.link_src))
    settled = np.setdiff1d(np.arange(src.size), free)
    _, links = _ack_routes(fabric, src[settled], dst[settled], port[settled], ports.take(settled))
    load += np.bincount(links, minlength=load.size)

    flow, other = _alternatives(fabric, src[free], dst[free], path[free], port[free],
                                ports.take(free))
    ptr, links = _ack_routes(fabric, src[free][flow], dst[free][flow], other,
                            ports.take(free[flow]))
    bounds = np.searchsorted(flow, np.arange(free.size + 1))
    found = port.copy()
    for number, (first, end) in enumerate(pairwise(bounds.tolist())):
        starts = ptr[first:end]  # each route has links: no flow stays on its endpoint
        loads = np.add.reduceat(load[links[starts[0]:ptr[end]]], starts - starts[0])
        best = first + int(loads.argmin())
        load[links[ptr[best]:ptr[best + 1]]] += 1
        found[free[number]] = other[best]
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


def _ack_routes(fabric: Fabric, src: Ints, dst: Ints, port: Ints,
               ports: FlowPorts) -> tuple[Ints, NDArray[np.int32]]:
    return fabric.route(fabric.flows(dst, src, ports.target, port, ports.protocol))
