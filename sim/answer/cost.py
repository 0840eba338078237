"""Cost of a row: an hour of the hosts that its GPUs are in, each of them whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.records.results import Cost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sim.cluster.cluster import Cluster


def cost_of(cluster: Cluster, gpus: NDArray[np.int64], tokens: int) -> Cost | None:
    """Cost of a job on these GPUs, whose samples have `tokens` tokens; None without prices."""
    prices = cluster.topology.prices
    if prices is None:
        return None
    each = np.array([prices.hosts[group.name] for group in cluster.topology.hosts
                     for _ in range(group.count)])
    hour = float(each[np.unique(cluster.host[gpus])].sum())
    if prices.tokens is not None:
        goal = f"{prices.tokens:g} tokens"
        return Cost(prices.currency, hour, prices.tokens / tokens, goal)
    goal = "" if prices.samples is None else f"{prices.samples:g} samples"
    return Cost(prices.currency, hour, prices.samples, goal)
