"""Choices for a model's pages: tiers, sizes of pages, and shares of each GPU for them.

For a scenario with ``offload``, whose model is not split, `choices` goes through the host's memory
alone and its disk as well (if every host has one), sizes of a page, how much of a GPU the pages
have, samples of a micro-step, and recomputation. As in `sim.answer.layout_choices` no step is
shorter than a choice's `least_s`: it computes all layers, and waits for nothing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Literal

from sim.answer.layout_choices import KERNELS, LARGEST_BATCH, Choice, recomputations
from sim.answer.scenario import Settings, recipe_of
from sim.cluster.placement import rank_gpus
from sim.schema.input_errors import Problem
from sim.schema.nccl_defaults import channel_count
from sim.schema.parallel_keys import Parallel
from sim.step.compute import plan_pass
from sim.step.gpu_memory import count
from sim.step.groups import Groups

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.cluster.cluster import Cluster
    from sim.schema.offload_keys import Offload
    from sim.schema.scenario_keys import Scenario

PAGES_BYTES = (1 << 20, 4 << 20, 16 << 20, 64 << 20)
SHARES = (1, 2, 4)
"""Parts of what a GPU has for pages; the largest first."""


def choices(cluster: Cluster, scenario: Scenario, samples: int) -> tuple[list[Choice], int]:
    """Places for the pages of a step, the one that might be fastest first; and how many do not fit.

    Planning a step finds out what tiers cannot hold. Raises TopologyError where the samples
    cannot be dealt out, or activations alone are larger than a GPU.
    """
    topology, offload = cluster.topology, scenario.offload
    assert offload is not None
    gpus = topology.gpu_counts(scenario)[-1]
    each, rest = divmod(samples, gpus)
    if rest or not each:
        raise topology.error(Problem(
            f"{samples} samples cannot be dealt out to {gpus} GPUs", path=("workload",),
            allowed=f"a multiple of {gpus}"))
    ranks = rank_gpus(cluster, list(range(cluster.hosts)), gpus, channel_count(topology, scenario),
                      affinity=scenario.affinity)
    base = recipe_of(cluster, scenario, topology.workload, ranks, Settings())
    flops = float(cluster.flops[ranks.gpus].min())
    given = {key: getattr(offload, key) for key in ("update", "slows")
             if key in offload.model_fields_set}
    found, too_large = [], 0
    for batch, recompute in product(_batches(each), recomputations(topology.workload)):
        recipe = replace(base, batch=batch, accumulation=each // batch, recompute=recompute,
                         kernels=KERNELS)
        memory = count(recipe, Groups(recipe.layout, gpus, ranks.host_group))
        beside = (memory.activations or 0) + memory.buffers
        least_s = plan_pass(replace(recipe, layout=Parallel()), flops).compute_s * (each // batch)
        for to, page, device in _places(cluster, offload, beside):
            if device < page:
                too_large += 1
                continue
            place = given | {"to": to, "page": _mib(page), "device": _mib(device)}
            found.append(Choice(scenario.layout, batch, each // batch, recompute, KERNELS,
                                beside + device, least_s, place))
    if not found:
        raise topology.error(Problem(
            "activations and buffers of one sample leave no room for pages on a GPU",
            path=("workload",), allowed="larger GPUs, or fewer tokens a sample"))
    return sorted(found, key=lambda each: (each.least_s, -each.memory)), too_large


def _batches(each: int) -> list[int]:
    """Samples of a micro-step, from those that a GPU has a step."""
    return [1 << power for power in range(LARGEST_BATCH.bit_length()) if each % (1 << power) == 0]


def _mib(nbytes: int) -> str:
    return f"{nbytes >> 20}MiB"


def _places(cluster: Cluster, offload: Offload,
            beside: int) -> Iterator[tuple[Literal["host", "disk"], int, int]]:
    """Tiers, bytes of a page, and bytes of a GPU for pages."""
    groups = cluster.topology.hosts
    limits = [each for group in groups if (each := group.gpus.memory_bytes) is not None]
    most = offload.device if offload.device is not None else max(min(limits) - beside, 0)
    for to in ("host", "disk"):
        if to == "disk" and any(group.disk is None for group in groups):
            continue
        for page in PAGES_BYTES:
            for share in SHARES:
                yield to, page, most // share // page * page
