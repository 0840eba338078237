"""A job's model, its handling of gradients, and the plan of each bucket."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from harp.collectives.alltoallv import dispatch
from harp.collectives.choice import Rates
from harp.collectives.choice import choose as choose_way
from harp.collectives.even_routing import Router, even_blocks
from harp.collectives.few_bits_plan import BITS
from harp.collectives.protocol import SIMPLE
from harp.collectives.registry import make_plan
from harp.lightcc.policy import FP16_BYTES, FP32_BYTES, allreduce_path
from sim.network.nccl import choose, chosen_plan
from sim.schema.parallel_keys import Parallel
from sim.workloads.layers import SCORES
from sim.workloads.model import block_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from harp.collectives.collective_plan import Plan
    from harp.collectives.protocol import Protocol
    from harp.lightcc.settings import LightSettings
    from sim.cluster.placement import Placement
    from sim.network.nccl import View
    from sim.schema.parameters import FrameworkCosts
    from sim.step.groups import Group, Groups
    from sim.step.paging import Paging
    from sim.workloads.layers import Layer
    from sim.workloads.model import Model

    Ints = NDArray[np.int64]

ALLTOALL_PLANS = {"direct": "alltoall", "hierarchical": "hierarchical-alltoall"}
"""Plan of each way in which experts exchange activations."""


class Chosen(NamedTuple):
    """The algorithm and format in which a buffer is sent."""

    plan: Plan
    protocol: Protocol = SIMPLE


Views = dict[str, "View"]
"""A job's communicators as NCCL sees them, by their group."""


@dataclass(frozen=True)
class Recipe:
    """Training of a job: the model, and the transport of its gradients."""

    model: Model
    batch: int
    costs: FrameworkCosts
    allreduce: str = "ring"
    views: Views | None = None
    """NCCL's criteria of choice, for ``allreduce: nccl``; else plans run with Simple."""
    light: LightSettings | None = None
    group: int = 1
    """Ranks of a group of the 2D algorithms."""
    host_group: int = 1
    """Ranks of a host; where hosts differ, of the largest group that fills every one of them."""
    fp16: bool = False
    """Gradients are sent as fp16."""
    element_bytes: int = FP32_BYTES
    """Bytes of an element of activations and parameters."""
    gradient_bytes: int = FP32_BYTES
    """Bytes of an element of gradients, as they are added up and sent."""
    fusion: str = "cycle"
    """Rule of gradient fusion: ``cycle`` (Horovod) or ``size`` (DistributedDataParallel)."""
    threshold_bytes: int = 128 << 20
    cycle_s: float = 1e-3
    streams: int = 1
    alltoall: str = "direct"
    """Exchange of activations between experts (`sim.schema.scenario_keys`)."""
    expert_chunks: int = 1
    """Parts of a GPU's tokens: experts compute on one while others are sent."""
    expert_overlap: str = "none"
    """Whether tokens are sent while another micro-step computes (``micro-steps``)."""
    rates: Rates = field(default_factory=Rates)
    """Rates of hosts and network that choose an algorithm."""
    layout: Parallel = field(default_factory=Parallel)
    """Split of the model."""
    sends_beside: bool = False
    """Whether activations travel to other stages while the next pass computes."""
    accumulation: int = 1
    """Micro-steps of ``batch`` samples whose gradients add up before they are averaged."""
    recompute: str = "none"
    """Parts that the backward pass computes again (`sim.schema.scenario_keys`)."""
    precision: str = "fp32"
    """Type of matrix products."""
    left_wide: float = 1.0
    """Time of a product that the precision leaves in 16 bits, over that at the precision's rate."""
    flash: bool = True
    """Whether attention keeps no scores."""
    channels_last: bool = False
    """Whether convolutions' maps lie as matrix units want them."""
    kernels: str = "fused"
    """Whether kernels that memory bounds are fused, or eager."""
    moved: float = math.inf
    """Bytes/s of a GPU's memory: the rate of kernels with few FLOPs."""
    paging: Paging | None = None
    """Waits of the step where states are in pages beyond the GPU's memory."""
    shares_switches: bool = False
    """Whether hosts share links between switches."""
    placement: Placement | None = None
    """Places of ranks; None for a job of one GPU."""
    place: Callable[[Ints], Placement] | None = None
    """Lays some of the ranks, which are a communicator of their own."""

    def computes_again(self, layer: Layer) -> bool:
        """Whether the backward pass repeats a layer's forward pass.

        Selective recomputation is that of attention's scores, softmax and context; full
        recomputation that of whole blocks (Korthikanti et al. 2022, section 5; Chen et al. 2016).
        By operators, every second matrix product is computed again (torchtitan's selective "op":
        torchtitan/models/llama/parallelize_llama.py of December 2024).
        """
        return (self.recompute == "full" and block_of(layer) != "") or (
            self.recompute == "selective" and layer.name.endswith(SCORES)) or (
            self.recompute == "ops" and layer.name in self.model.every_second)

    def backward_flops(self, layer: Layer) -> int:
        """FLOPs of a layer's backward pass, with what it computes again."""
        return layer.backward_flops + (layer.forward_flops if self.computes_again(layer) else 0)


def choose_plan(recipe: Recipe, groups: Groups, elements: int,
                group: Group = "replicas") -> Chosen:
    """The plan that averages ``elements`` gradient elements over a group."""
    unit = FP16_BYTES if recipe.fp16 else recipe.gradient_bytes
    name, part = recipe.allreduce, recipe.group
    ranks, each = groups.size(group), groups.each(group)
    if recipe.views is not None:
        return _nccls(recipe.views[group], "allreduce", elements * unit, unit, each)
    ratio, bits = 1.0, BITS[0]
    value_bytes = unit
    if name == "tree":
        part = each
    if name == "light":
        assert recipe.light is not None
        path = allreduce_path(recipe.light, ranks, elements * recipe.gradient_bytes,
                              element_bytes=unit)
        name, part = path.plan, path.parameters.get("group", part)
        ratio = path.parameters.get("ratio", ratio)
        value_bytes = path.parameters.get("value_bytes", unit)
        bits = path.parameters.get("bits", bits)
    return Chosen(_made(name, ranks=ranks, nbytes=elements * unit, unit_bytes=unit,
                        group=min(part, ranks), ratio=ratio, value_bytes=value_bytes, bits=bits,
                        chunk_bytes=max(elements * unit, 1)))


def exchange_plan(recipe: Recipe, groups: Groups, nbytes: int, group: Group = "experts") -> Plan:
    """The plan of the experts' exchange of ``nbytes`` bytes by each of their ranks.

    There and back cost the same: sums come back by the edges of copies, turned round.
    """
    router = next((Router(layer.experts, layer.top_k, layer.groups, layer.top_groups)
                   for layer in recipe.model.layers if layer.experts), None)
    if recipe.alltoall not in ALLTOALL_PLANS and router is not None:
        return _exchange_of_tokens(recipe.alltoall, nbytes // router.top_k, router,
                                   groups.size(group), groups.each(group), recipe.element_bytes,
                                   recipe.rates)
    return _made(ALLTOALL_PLANS.get(recipe.alltoall, "alltoall"), ranks=groups.size(group),
                 nbytes=nbytes, unit_bytes=recipe.element_bytes, group=groups.each(group))


@lru_cache(maxsize=256)
def _exchange_of_tokens(alltoall: str, nbytes: int, router: Router, ranks: int, each: int,
                        unit_bytes: int, rates: Rates) -> Plan:
    """The plan that AngelPTM's layer of experts makes for even routing."""
    hosts = tuple(rank // each for rank in range(ranks))
    blocks = even_blocks(nbytes // unit_bytes * unit_bytes, router, hosts, unit_bytes)
    way = (choose_way(dispatch, blocks, hosts, rates) if alltoall == "chosen"
           else "once-per-host")
    return dispatch(blocks, way, hosts, unit_bytes)


def send_plan(recipe: Recipe, nbytes: int) -> Plan:
    """The plan of two ranks that send each other ``nbytes`` bytes."""
    return _made("alltoall", ranks=2, nbytes=2 * nbytes, unit_bytes=recipe.element_bytes, group=1)


def share_plan(recipe: Recipe, groups: Groups, collective: str, elements: int,
               group: Group = "replicas") -> Chosen:
    """The ring that gathers ``elements`` parameters (allgather) or reduce-scattered."""
    unit = recipe.gradient_bytes if collective == "reduce-scatter" else recipe.element_bytes
    return _group_plan(recipe, groups, collective, elements * unit, group, unit)


def activation_plan(recipe: Recipe, groups: Groups, collective: str, nbytes: int,
                    group: Group) -> Chosen:
    """Plan with which a group adds up, gathers or scatters ``nbytes`` bytes of activations."""
    return _group_plan(recipe, groups, collective, nbytes, group, recipe.element_bytes)


def _group_plan(recipe: Recipe, groups: Groups, collective: str, nbytes: int, group: Group,
                unit: int) -> Chosen:
    if recipe.views is not None:
        each = groups.each(group) if collective == "allreduce" else 1
        return _nccls(recipe.views[group], collective, nbytes, unit, each)
    name = "ring" if collective == "allreduce" else collective
    return Chosen(_made(name, ranks=groups.size(group), nbytes=nbytes, unit_bytes=unit, group=1))


_made = lru_cache(maxsize=256)(make_plan)
"""Plans of the steps and simulations before, which ask for the same ones."""


@lru_cache(maxsize=256)
def _nccls(view: View, collective: str, nbytes: int, unit_bytes: int, group: int) -> Chosen:
    """The plan that NCCL runs; one without steps for a single rank."""
    if view.ranks == 1:
        return Chosen(_made("ring", ranks=1, nbytes=nbytes, unit_bytes=unit_bytes, group=1))
    choice = choose(view, collective, nbytes)
    return Chosen(chosen_plan(choice, view.ranks, nbytes, unit_bytes=unit_bytes, group=group),
                  choice.protocol)
