"""Load and completion of flows by max-min fair sharing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.network.flow.fluid import Fluid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric, Flows

    Routes = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64] | None]


def _routes(fabric: Fabric, flows: Flows, *, spray: bool) -> Routes:
    """Links of each flow, and the share of it that crosses them."""
    return fabric.route_spray(flows) if spray else (*fabric.route(flows), None)


def max_load(fabric: Fabric, flows: Flows, *, spray: bool = False) -> float:
    """Demand over capacity of the fullest link, where each flow wants its NIC's rate."""
    ptr, links, share = _routes(fabric, flows, spray=spray)
    wanted = fabric.link_bps[fabric.endpoint_ports[flows.src, 0]]
    demand = np.repeat(wanted, np.diff(ptr)) * (1.0 if share is None else share)
    return float((np.bincount(links, demand, len(fabric.link_bps)) / fabric.link_bps).max())


def flow_ms(fabric: Fabric, flows: Flows, nbytes: int, *, spray: bool = False) -> float:
    """Milliseconds until the last of the flows, which begin at once, is done."""
    ptr, links, share = _routes(fabric, flows, spray=spray)
    network = Fluid(fabric.link_bps)
    first = network.add_routes(ptr, links, share)
    network.start(first + np.arange(ptr.size - 1), np.full(ptr.size - 1, 8.0 * nbytes))
    return 1e3 * network.drain()
