"""Checks of how a model is split: whether it fits the model, the hosts and the algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harp.collectives.even_routing import Router
from sim.schema.input_errors import Problem, listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.schema.input_errors import Path
    from sim.schema.parallel_keys import Parallel
    from sim.schema.scenario_keys import Scenario, Workload
    from sim.schema.topology_model import Topology


def check_parallel(topology: Topology, scenario: Scenario, path: Path) -> Iterator[Problem]:
    """Every problem with how ``scenario``, which stands at ``path``, splits its model."""
    layout = scenario.layout
    if scenario.tensor > 1 and scenario.parallel.tensor > 1:
        yield Problem("stands under parallel as well", path=(*path, "tensor"), at_key=True,
                      allowed="one of the two")
        return
    where = _Where(path, given_above=scenario.tensor > 1)
    found = [*_algorithm(scenario, layout, path), *_sizes(topology, scenario, layout, where)]
    yield from found
    if not found:
        for workload in topology.workloads_of(scenario):
            if workload.has_network:
                yield from _fits_model(workload, layout, where)
                yield from _fits_hiding(workload, scenario, path)
                yield from _fits_router(topology, workload, scenario, path)


class _Where:
    """Where a key of the layout stands."""

    def __init__(self, path: Path, *, given_above: bool) -> None:
        self._path, self._above = path, given_above

    def of(self, key: str) -> Path:
        if key == "tensor" and self._above:
            return (*self._path, key)
        return (*self._path, "parallel", key)


def _algorithm(scenario: Scenario, layout: Parallel, path: Path) -> Iterator[Problem]:
    if layout.shard != "none" and scenario.allreduce not in ("nccl", "ring"):
        yield Problem(f"has no meaning with parallel: {layout.shard}, which gathers and scatters "
                      "by rings", path=(*path, "allreduce"), at_key=True,
                      allowed="parallel: data beside it")
    elif layout.split > 1 and scenario.allreduce not in ("nccl", "ring", "tree"):
        key = next(key for key in ("tensor", "context", "pipeline") if getattr(layout, key) > 1)
        yield Problem(f"'{scenario.allreduce}' averages hosts, and {key}: {getattr(layout, key)} "
                      "leaves no whole host to average", path=(*path, "allreduce"),
                      found=scenario.allreduce, allowed=f"nccl, ring or tree beside {key}")


def _sizes(topology: Topology, scenario: Scenario, layout: Parallel,
           where: _Where) -> Iterator[Problem]:
    """Groups divide hosts and rows."""
    hosts = {group.gpus.count for group in topology.hosts}
    rows = {gpus for _, gpus in topology.rows(scenario)}
    is_wide = len(hosts) == 1 and layout.tensor % min(hosts) == 0
    if any(size % layout.tensor for size in (rows if is_wide else hosts | rows)):
        sizes = listing(sorted(map(str, hosts | rows)))
        yield Problem(f"{layout.tensor} does not divide {sizes} GPUs",
                      path=where.of("tensor"), found=layout.tensor,
                      allowed="a number that divides the GPUs of each host and row, or the GPUs of "
                      "several whole hosts that are alike")
        return
    yield from _wide_tensor(layout, min(hosts), where)
    for gpus in sorted(rows):
        if gpus % layout.split:
            key = "pipeline" if layout.pipeline > 1 else "context"
            yield Problem(f"tensor x context x pipeline is {layout.split}, which does not divide "
                          f"{gpus} GPUs", path=where.of(key), found=getattr(layout, key),
                          allowed="numbers whose product divides the GPUs of each row")
            return
        stage = gpus // layout.pipeline
        host = min(hosts)
        if layout.pipeline > 1 and stage % host and host % stage:
            yield Problem(f"stages of {stage} GPUs on hosts of {host}", path=where.of("pipeline"),
                          found=layout.pipeline, allowed="stages of whole hosts, or several a host")
            return
        if layout.data is not None and layout.data * layout.split != gpus:
            yield Problem(f"{layout.data} copies on {layout.split} GPUs each are not {gpus} GPUs",
                          path=where.of("data"), found=layout.data,
                          allowed=f"{gpus // layout.split}, or no data")
            return
        shards = stage // (layout.replicate or 1)
        if layout.replicate is not None and (
                stage // layout.tensor % layout.replicate or (shards % host and host % shards)):
            yield Problem(f"{stage} GPUs of a stage are no {layout.replicate} groups of shards",
                          path=where.of("replicate"), found=layout.replicate,
                          allowed="groups of whole hosts, or several a host")
            return
        yield from _expert_size(layout, stage, shards if layout.replicate else host, where)


def _wide_tensor(layout: Parallel, host: int, where: _Where) -> Iterator[Problem]:
    """Keys about a host of ``host`` GPUs beside tensor groups that take several."""
    for key, wrong, says, allowed in (
            ("tensor_overlap", layout.tensor_overlap, "pieces go by the NVLink of a host", "false"),
            ("shard", layout.shard == "hsdp" and layout.replicate is None,
             "hsdp has a group of shards in each host", "replicate beside it")):
        if wrong and layout.tensor > host:
            yield Problem(f"{says}, and a tensor group takes {layout.tensor // host} hosts",
                          path=where.of(key), found=getattr(layout, key),
                          allowed=f"{allowed}, or tensor groups within a host")


def _expert_size(layout: Parallel, stage: int, shards: int, where: _Where) -> Iterator[Problem]:
    """Experts are spread within a stage and, with hsdp, within a group of ``shards`` GPUs."""
    if layout.expert is None:
        return
    gpus, of = stage, "a stage"
    if layout.shard == "hsdp":
        gpus, of = min(stage, shards), "a group of shards"
    if gpus // layout.tensor % layout.expert:
        beside = f" over tensor: {layout.tensor}" if layout.tensor > 1 else ""
        yield Problem(f"{layout.expert} does not divide the {gpus} GPUs of {of}{beside}",
                      path=where.of("expert"), found=layout.expert,
                      allowed="a number that divides them")


def _fits_model(workload: Workload, layout: Parallel, where: _Where) -> Iterator[Problem]:
    network = workload.network
    parts = [key for key in ("tensor", "context", "pipeline") if getattr(layout, key) > 1]
    if parts and not network.activations:
        yield Problem(f"model {network.name} is no row of like transformer blocks",
                      path=where.of(parts[0]), found=getattr(layout, parts[0]),
                      allowed="1, or a model such as gpt2, bert-large or llama2-7b")
        return
    shape = network.shape
    if shape is not None and shape.heads % layout.tensor:
        yield Problem(f"{layout.tensor} does not divide the {shape.heads} heads",
                      path=where.of("tensor"), found=layout.tensor,
                      allowed="a number that divides them")
    if layout.context > 1 and (shape is None or network.tokens % (2 * layout.context)):
        yield Problem(f"{2 * layout.context} pieces do not divide {network.tokens} tokens",
                      path=where.of("context"), found=layout.context,
                      allowed="a number whose double divides the sequence")
    yield from _fits_pipeline(workload, layout, where)
    yield from _fits_experts(workload, layout, where)


def _fits_pipeline(workload: Workload, layout: Parallel, where: _Where) -> Iterator[Problem]:
    blocks = workload.network.blocks
    pieces = layout.pipeline * layout.interleave
    if pieces > max(blocks, 1):
        key = "interleave" if layout.pipeline <= blocks else "pipeline"
        yield Problem(f"{pieces} pieces of {blocks} blocks", path=where.of(key),
                      found=getattr(layout, key), allowed=f"a product of at most {blocks}")
    if layout.schedule == "dualpipe-v" and workload.accumulation < pieces:
        yield Problem(f"{workload.accumulation} micro-steps are fewer than {pieces} pieces of "
                      "stages", path=where.of("schedule"), found=layout.schedule,
                      allowed=f"zb-v, or an accumulation of {pieces} or more")
    elif layout.interleave > 1 and not layout.is_v and workload.accumulation % layout.pipeline:
        yield Problem(f"{workload.accumulation} micro-steps do not fill {layout.pipeline} stages "
                      "in turns", path=where.of("interleave"), found=layout.interleave,
                      allowed="1, or an accumulation that is a multiple of the stages")


def _fits_experts(workload: Workload, layout: Parallel, where: _Where) -> Iterator[Problem]:
    if layout.expert is None:
        return
    shape = workload.network.shape
    count = shape.experts.count if shape is not None and shape.experts is not None else 0
    if not count or count % layout.expert:
        yield Problem(f"{layout.expert} does not divide {count} experts" if count else
                      f"model {workload.network.name} has no experts", path=where.of("expert"),
                      found=layout.expert, allowed="a number that divides them" if count else
                      "no expert here")


def _fits_hiding(workload: Workload, scenario: Scenario, path: Path) -> Iterator[Problem]:
    """Check that tokens are sent to experts where a key hides their exchange."""
    keys = [key for key in ("expert_chunks", "expert_overlap")
            if key in scenario.model_fields_set and getattr(scenario, key) not in (1, "none")]
    layers = workload.network.layers
    if not keys:
        return
    if not any(layer.dispatches_tokens for layer in layers):
        says, allowed = f"model {workload.network.name} has no experts", "a model that has some"
    elif scenario.layout.gathers_experts:
        says = f"with {scenario.layout.shard} experts are gathered, and no token is sent"
        allowed = "another shard, or expert under parallel"
    elif "expert_overlap" in keys and workload.accumulation == 1:
        keys, says = ["expert_overlap"], "a step of one micro-step has no other to compute"
        allowed = "an accumulation above 1"
    else:
        return
    yield Problem(says, path=(*path, keys[0]), at_key=True, allowed=allowed)


def _fits_router(topology: Topology, workload: Workload, scenario: Scenario,
                 path: Path) -> Iterator[Problem]:
    """Check that a router's groups are whole on ranks and hosts, where hosts pass tokens on."""
    shape, layout = workload.network.shape, scenario.layout
    mix = None if shape is None else shape.experts
    if scenario.alltoall not in ("once-per-host", "chosen") or mix is None or mix.groups == 1:
        return
    router = Router(mix.count, mix.top_k, mix.groups, mix.top_groups)
    for gpus in sorted({gpus for _, gpus in topology.rows(scenario)}):
        most = gpus // (layout.pipeline * layout.tensor)
        ranks = min(layout.expert or most, most)
        sizes = {min(max(group.gpus.count // layout.tensor, 1), ranks) for group in topology.hosts}
        if len(sizes) > 1 or ranks % min(sizes) or not router.lies_evenly(ranks, min(sizes)):
            yield Problem(f"{mix.groups} groups of experts are not whole on {ranks} GPUs, "
                          f"{listing(sorted(map(str, sizes)))} a host", path=(*path, "alltoall"),
                          found=scenario.alltoall, allowed="direct or hierarchical, or GPUs that "
                          "have whole groups")
            return
