"""Layouts of a model over a scenario's GPUs: those that are possible, fit, and might be fast.

`choices` goes through degrees of tensor parallelism within a host, of pipelines, context and expert
parallelism, shards, chunks of the tokens that are sent to experts, sizes of micro-steps and
recomputation, with as many samples a step in each. Of kernels only the fused ones are tried, since
no step is faster without. Layouts that the topology file would refuse are left out, by its own
checks, and so is what needs more memory than a GPU has (`sim.step.gpu_memory`). Of the rest each
has a `least_s`: no step of it can be shorter, since

- the slowest stage computes its micro-steps and waits for the others (`sim.step.stages`);
- between, it waits for a tensor group's all-reduces, at the rate of NVLink at best;
- each host sends what parallelism of data asks of it: an average of P bytes over H hosts cannot do
  with less than 2 (H - 1)/H P from each (Patarasuk and Yuan 2009, theorem 1), by all of its NICs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sim.answer.scenario import Settings, recipe_of
from sim.cluster.placement import rank_gpus
from sim.schema.input_errors import Problem
from sim.schema.nccl_defaults import channel_count
from sim.schema.parallel_checks import check_parallel
from sim.schema.parallel_keys import Parallel
from sim.step.compute import plan_pass
from sim.step.gpu_memory import count
from sim.step.groups import Groups
from sim.step.stages import slowest_stage
from sim.step.step_graph import EACH_WAY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.cluster.cluster import Cluster
    from sim.schema.scenario_keys import Scenario, Workload
    from sim.schema.topology_model import Topology
    from sim.step.recipe import Recipe

LARGEST_BATCH = 16
"""Samples of the largest micro-step that is tried."""
KERNELS = "fused"
"""Kernels of every choice."""
SCHEDULES = ("1f1b", "zero-bubble", "zb-v")
"""Without DualPipeV, which waits longer than ZB-V and keeps more (`sim.step.stages`)."""
CHUNKS = (1, 2, 4, 8)
"""Chunks that are tried where tokens are sent to experts."""
SURE = 0.95
"""Of what the network takes at least: a micro-step that stands for others, and lasts as long within
some percent, may be too short (`sim.step.step_graph`)."""


@dataclass(frozen=True)
class Choice:
    """A way to split the model and its batch."""

    layout: Parallel
    batch: int
    accumulation: int
    recompute: str
    kernels: str
    memory: int
    """Bytes on the fullest GPU."""
    least_s: float
    """No step is shorter."""
    offload: dict[str, Any] | None = None
    """Places of its pages, if it has pages: keys of the file."""
    chunks: int = 1
    """Chunks of the tokens that are sent to experts."""
    overlap: str = "none"
    """The file's ``expert_overlap``, if tokens are dispatched and there is another micro-step."""

    @property
    def workload(self) -> dict[str, Any]:
        """Keys of the workload that it sets."""
        return {"batch": self.batch, "accumulation": self.accumulation,
                "recompute": self.recompute, "kernels": self.kernels}

    @property
    def parallel(self) -> dict[str, Any]:
        """Keys under ``parallel``, without defaults."""
        return self.layout.model_dump(mode="json", exclude_defaults=True)

    @property
    def scenario(self) -> dict[str, Any]:
        """Keys of the scenario that it sets."""
        given: dict[str, Any] = {} if self.offload is None else {"offload": self.offload}
        given |= {"expert_chunks": self.chunks} if self.chunks > 1 else {}
        given |= {"expert_overlap": self.overlap} if self.overlap != "none" else {}
        return {"parallel": self.parallel} | given

    @property
    def text(self) -> str:
        """The layout in a few words."""
        if self.offload is not None:
            return "{to}, pages of {page}, {device} of them on the GPU".format(**self.offload)
        given = self.parallel
        parts = [f"{key} {given[key]}" for key in ("tensor", "pipeline", "context", "expert",
                                                    "interleave") if key in given]
        parts += [str(given[key]) for key in ("schedule", "shard") if key in given]
        parts += [f"{self.chunks} chunks"] if self.chunks > 1 else []
        return ", ".join(parts) or "data"


def samples_of(topology: Topology, scenario: Scenario) -> int:
    """Samples of a step as the file has it."""
    workload = topology.workload
    copies = topology.gpu_counts(scenario)[-1] // scenario.layout.split
    return copies * workload.batch * workload.accumulation


def check_searchable(topology: Topology, scenario: Scenario) -> None:
    """Raise TopologyError where there is nothing to choose."""
    topology.require_workload()
    for wrong, says, path in (
            (topology.workload.trace is not None, "traces have their layout", ("workload",)),
            (bool(topology.jobs), "layouts of several jobs are not searched", ("jobs",)),
            (scenario.faults, "layouts are searched without faults", ("scenarios",))):
        if wrong:
            raise topology.error(Problem(says, path=path, at_key=len(path) == 1,
                                         allowed="a file, or scenario, with one model alone"))


def choices(cluster: Cluster, scenario: Scenario, samples: int) -> tuple[list[Choice], int]:
    """Layouts that fit, the one that might be fastest first; and how many do not fit.

    Raises TopologyError where no layout is possible, or none fits.
    """
    topology = cluster.topology
    gpus = topology.gpu_counts(scenario)[-1]
    ranks = rank_gpus(cluster, list(range(cluster.hosts)), gpus, channel_count(topology, scenario),
                      affinity=scenario.affinity)
    base = recipe_of(cluster, scenario, topology.workload, ranks, Settings())
    island = gpus if scenario.sync is None else ranks.host_group
    limit = min((each for group in topology.hosts
                 if (each := group.gpus.memory_bytes) is not None), default=None)
    found, too_large = [], 0
    least: dict[object, float] = {}
    """Of what shards do not change."""
    for layout, batch, accumulation, recompute in _possible(topology, scenario, gpus, samples):
        recipe = replace(base, layout=layout, batch=batch, accumulation=accumulation,
                         recompute=recompute, kernels=KERNELS, expert_overlap="none")
        dispatches = _dispatches_tokens(recipe)
        if dispatches and accumulation > 1:
            recipe = replace(recipe, expert_overlap=base.expert_overlap)
        memory = count(recipe, Groups(layout, island, ranks.host_group)).total
        if limit is not None and memory > limit:
            too_large += 1
        else:
            alike = layout.model_copy(update={"shard": "none"}), batch, recompute
            if alike not in least:
                least[alike] = _on_gpu_s(cluster, recipe, gpus)
            hosts = island // layout.pipeline // ranks.host_group
            least_s = max(least[alike], _network_s(cluster, recipe, hosts))
            found += [Choice(layout, batch, accumulation, recompute, KERNELS, memory, least_s,
                             chunks=chunks, overlap=recipe.expert_overlap)
                      for chunks in (CHUNKS if dispatches else CHUNKS[:1])]
    if not found:
        raise topology.error(Problem(
            f"no layout of {samples} samples a step on {gpus} GPUs is possible" if not too_large
            else f"none of {too_large} layouts fits into {_gib(limit)} of a GPU",
            path=("workload",), allowed="another number of samples" if not too_large
            else "more GPUs, or a smaller model"))
    return sorted(found, key=lambda each: each.least_s), too_large


def _gib(nbytes: int | None) -> str:
    return f"{(nbytes or 0) / 2**30:.1f} GiB"


def _possible(topology: Topology, scenario: Scenario, gpus: int,
              samples: int) -> Iterator[tuple[Parallel, int, int, str]]:
    """Layouts that the file's checks let through, with the sizes of their micro-steps."""
    workload = topology.workload
    for layout in _layouts(topology, scenario, gpus):
        each, rest = divmod(samples * layout.split, gpus)
        if rest:
            continue
        for power in range(LARGEST_BATCH.bit_length()):
            batch = 1 << power
            if each % batch or (layout.context > 1 and batch > 1):
                break  # tokens of a sample are split where not even one fits
            changed = topology.model_copy(update={"workload": workload.model_copy(
                update={"batch": batch, "accumulation": each // batch})})
            if not any(check_parallel(changed, _with(scenario, layout), ())):
                for recompute in recomputations(workload):
                    yield layout, batch, each // batch, recompute


def _dispatches_tokens(recipe: Recipe) -> bool:
    """Tell whether tokens are dispatched to experts; where experts are gathered, none is."""
    return not recipe.layout.gathers_experts and any(
        layer.dispatches_tokens for layer in recipe.model.layers)


def recomputations(workload: Workload) -> tuple[str, ...]:
    """Choices of recomputation; flash attention never keeps what `selective` would drop."""
    return ("none", "ops", "full") if workload.flash else ("none", "selective", "ops", "full")


def _with(scenario: Scenario, layout: Parallel) -> Scenario:
    return scenario.model_copy(update={"parallel": layout, "tensor": 1, "expert_chunks": 1,
                                       "expert_overlap": "none"})


def _layouts(topology: Topology, scenario: Scenario, gpus: int) -> Iterator[Parallel]:
    """Mixtures that are of a form, and may be none of this model."""
    network = topology.workload.network
    shape = network.shape
    host = min(group.gpus.count for group in topology.hosts)
    mix = shape.experts.count if shape is not None and shape.experts is not None else 1
    blocks = max(network.blocks, 1)
    splits = bool(network.activations)
    for tensor, pipeline, context, expert, interleave, schedule, shard in product(
            _powers(host if splits else 1), _powers(min(gpus, blocks) if splits else 1),
            _powers(host if splits and shape is not None else 1), (None, *_powers(mix)[1:]),
            (1, 2, 4), SCHEDULES, ("none", "zero1", "zero2", "fsdp", "hsdp")):
        if gpus % (tensor * pipeline * context):
            continue
        keys = {"tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert,
                "interleave": interleave, "schedule": schedule, "shard": shard,
                "sequence": tensor > 1,
                "tensor_overlap": tensor > 1 and scenario.layout.tensor_overlap,
                "pipeline_overlap": (scenario.layout.pipeline_overlap if interleave > 1
                                     else None),
                "gather_overlap": (shard in ("zero1", "zero2")
                                   and scenario.layout.gather_overlap)}
        try:
            yield Parallel.model_validate({key: value for key, value in keys.items()
                                           if value is not None})
        except ValidationError:  # what may not be combined
            continue


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]


def _on_gpu_s(cluster: Cluster, recipe: Recipe, gpus: int) -> float:
    """Lower bound of a GPU's computing and waiting in a step: see the module's manual."""
    layout = recipe.layout
    stage = slowest_stage(recipe)
    recipe = replace(recipe, model=stage.model)
    work = plan_pass(recipe, float(cluster.flops[:gpus].min()) * layout.tensor * layout.context)
    micro_s = work.compute_s + _tensor_s(cluster, recipe)
    return micro_s * (recipe.accumulation + stage.bubble)


def _tensor_s(cluster: Cluster, recipe: Recipe) -> float:
    """Waiting for all-reduces of activations, in one micro-step."""
    layout, model = recipe.layout, recipe.model
    rates = [group.nvlink.rate if group.nvlink is not None else float("inf")
             for group in cluster.topology.hosts]
    times = EACH_WAY * (3 if recipe.recompute == "full" else 2)
    nbytes = recipe.batch * model.activations * recipe.element_bytes / layout.context
    if layout.tensor_overlap:
        nbytes /= layout.tensor
    return (model.blocks * times * 2 * (layout.tensor - 1) / layout.tensor * 8 * nbytes
            / max(rates))


def _network_s(cluster: Cluster, recipe: Recipe, hosts: int) -> float:
    """Bytes that each of the hosts of a stage sends in a step."""
    layout, light = recipe.layout, recipe.light
    if hosts < 2 or (light is not None and light.topk):
        return 0.0
    model = slowest_stage(recipe).model
    elements = model.replicated
    each_step = layout.pipeline > 1
    times = {"none": 2, "zero1": 2, "zero2": recipe.accumulation + 1,
             "fsdp": 2 if each_step else 3 * recipe.accumulation,
             "hsdp": 2 if each_step else 2 * recipe.accumulation}[layout.shard]
    rate = max(sum(nic.rate * nic.count * nic.ports for nic in group.nics)
               for group in cluster.topology.hosts)
    wide = 2 if recipe.fp16 else min(recipe.gradient_bytes, recipe.element_bytes)
    return SURE * times * (hosts - 1) / hosts * elements * wide * 8 / rate
