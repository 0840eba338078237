"""Cost of a row: an hour of the hosts that its GPUs are in, each of them whole."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sim.records.results import Cost
from sim.step.outer_loss import times_the_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sim.cluster.cluster import Cluster
    from sim.cluster.placement import Ranks
    from sim.schema.scenario_keys import Scenario
    from sim.workloads.model import Model


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


def training_cost(cluster: Cluster, scenario: Scenario, model: Model, ranks: Ranks) -> Cost | None:
    """Cost of a job, and how much more training brings the loss of averaging in each step."""
    cost = cost_of(cluster, ranks.gpus, model.tokens)
    islands = len(ranks.gpus) // ranks.host_group
    if cost is None or cost.samples is None:
        return cost
    if scenario.sync is None or islands == 1:
        return replace(cost, same_loss=None if scenario.allreduce == "light" else 1.0)
    return replace(cost, same_loss=times_the_tokens(
        scenario.sync.policy, model, islands, cost.samples * model.tokens))
