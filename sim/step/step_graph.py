"""A training step as a graph of operations, for every way to split a model that a file may name.

Operations on the GPU run one after the other in the order of the graph; the others begin when those
in ``after`` are done. All ranks of a job do the same, so one graph stands for all. `sim.step.train`
runs a graph, and `sim.step.groups` says which ranks an operation joins.

Copies of the model average gradients while the backward pass runs. Where they share the optimizer's
states (zero1), gradients are reduced and scattered instead, and parameters gathered behind the
update; with zero2 they are scattered after each micro-step (Rajbhandari et al., SC 2020, sections 5
and 7.2.1; both send as much as an average). With ``gather_overlap`` parameters are gathered in the
next step: its first forward pass begins with the first bucket, and ends no sooner than the last one
is there.

Fully sharded data parallelism spreads parameters over the ranks, as well as gradients and states.
Before a unit (a block of the network) computes, its parameters are gathered from all ranks; then
they are dropped. After its backward pass its gradients are reduced and scattered. A step sends
three times the parameters, less each rank's own share: 3 (n - 1)/n elements for each one (ZeRO
stage 3: ibid., section 7.2.2). The GPU lays out what was gathered, and what will be scattered
(`sim.step.state_times`). The next unit is gathered while one computes, and no earlier: one unit is
ahead (`forward_prefetch` and `BACKWARD_PRE` of Zhao et al., VLDB 2023, section 3.3). A model
without blocks is a single unit, as in FSDP without a wrapping policy. Experts are gathered like all
else, so that no token is sent; but where the file says over how many GPUs they are spread, tokens
are sent, and a unit gathers and scatters those experts that a GPU has among the GPUs that have the
same ones (pytorch/torchtitan's pull request 2281: each layer issues two gathers and two scatters).
Hybrid sharding gathers within hosts, and averages what has been scattered between them (ibid.,
section 3.2.2).

In a pipeline FSDP gathers parameters once a step and keeps them (`reshard_after_forward` of
torchtitan's parallelize.py), and gradients add up, whole, until the last micro-step scatters them
(`perform_reduce_grad` of torch/distributed/pipelining/stage.py, 2.13; pytorch/torchtitan's pull
request 4182). With zero2 each micro-step scatters its own there as well: Megatron-FSDP's
``optim_grads`` (`grad_reduce_every_bprop` of megatron_fsdp.py) and NeMo AutoModel's
``reduce_grad_per_microbatch`` (NVIDIA-NeMo/Automodel's pull request 1859).

Tensor parallelism splits every matrix over ``t`` GPUs (Shoeybi et al. 2019). A block of a
transformer needs four allreduces of its activations in each step: after its attention and its
feed-forward network in the forward pass, before them in the backward pass (Megatron-LM, figure 4),
and two more if it is computed again. Each rank sends 2 (t - 1)/t of the activations' bytes in each;
with sequence parallelism an allgather and a reduce-scatter send as much (Korthikanti et al. 2022,
section 4.2.2). The GPU waits for them. With ``tensor_overlap`` tokens go round in t pieces, and the
products of one piece are computed while the next is sent: the GPU waits for one piece of each, and
for what of the others takes longer than the block's arithmetic (Wang et al., ASPLOS 2023,
section 3; NeMo's userbuffers). Each GPU holds 1/t of the parameters, which are averaged over the
GPUs of the same number in all other groups. Norms and biases that Megatron repeats on every GPU
count as split.

Context parallelism splits the tokens of a sample. Before a block attends it gathers keys and
values, in the backward pass once more, and then scatters their gradients (Grattafiori et al. 2024,
Llama 3, section 3.3.2).

A pipeline is one stage, the slowest (`sim.step.stages`): its micro-steps, the activations that it
exchanges with its neighbours before and after each piece, which the GPU waits for, and the time in
which it waits for the others. Each rank of a tensor-parallel group sends its share (Narayanan et
al., SC 2021, section 4.1). With ``sends_beside`` a stage of several pieces sends what a forward
pass has made while the next backward pass computes, and the other way round. Its sends are waited
for while the pipeline fills and drains (forward_backward_pipelining_with_interleaving in
megatron/core/pipeline_parallel/schedules.py, NVIDIA/Megatron-LM at commit 00611e6e:
overlap_p2p_comm).

Where the host launches kernels one by one, no pass ends before it has (`sim.step.launches`).

Micro-steps that are alike are simulated once, and the time repeated: ``again``. Their sends
beside the GPU take their own time once more for each, from the end of one micro-step's to that of
the next: ``backlog``, which what the next micro-step sends waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from sim.step.compute import NONE, Work, backward_s, chunks_of, forward_s
from sim.step.groups import expert_shards
from sim.step.kernels import moving
from sim.step.launches import launching
from sim.step.state_times import laid_out_s
from sim.workloads.model import block_of

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from sim.schema.parallel_keys import Parallel
    from sim.step.compute import Pass
    from sim.step.groups import Group, Groups
    from sim.step.paging import Paging, Waits
    from sim.step.recipe import Recipe
    from sim.workloads.layers import Layer


Kind = Literal["forward", "backward", "settle", "exchange", "reduce", "collect", "spread", "send",
               "again", "bubble", "page", "launch", "average", "gather", "scatter", "backlog",
               "overlapped", "overlapped-reduce", "overlapped-send"]
ON_GPU = frozenset({"forward", "backward", "settle", "exchange", "reduce", "collect", "spread",
                    "send", "again", "bubble", "page", "launch"})
"""Kinds that the GPU does or waits for; the others run beside it."""
OVERLAPPED = frozenset({"overlapped", "overlapped-reduce", "overlapped-send"})
"""Of those beside it, the kinds that its micro-step waits for."""


def may_outlast(kind: Kind) -> bool:
    """Whether what runs beside the GPU may still do so when its micro-step ends."""
    return kind not in ON_GPU | OVERLAPPED


@dataclass(frozen=True)
class Operation:
    """One operation of every rank.

    - forward, backward: arithmetic of ``seconds``;
    - settle: the GPU gives back the time that collectives took of it;
    - exchange: an all-to-all of ``size`` bytes a rank, between experts or tables;
    - overlapped: such an all-to-all beside the GPU, of a part of the tokens or while another
      micro-step computes;
    - reduce, collect, spread: an allreduce, allgather, reduce-scatter of ``size`` bytes of
      activations;
    - overlapped-reduce: such an allreduce beside the GPU, while it computes the block;
    - send: ``size`` bytes to the next stage, and as many back;
    - overlapped-send: the same beside the GPU, while it computes the next pass;
    - launch: waiting until the host has launched what stands since operation ``since``, which takes
      it ``seconds``;
    - page: waiting for pages of states, ``seconds``, beside all that is on its way;
    - again: what the GPU did since operation number ``since``, ``size`` times more;
    - bubble: waiting for other stages, ``seconds`` times what it did since ``since``;
    - backlog: beside the GPU, the time from the end of operation ``since`` to that of those in
      ``after``, ``size`` times more;
    - average: an allreduce of ``size`` gradient elements over all replicas;
    - gather, scatter: an allgather to, a reduce-scatter of ``size`` parameter elements.
    """

    kind: Kind
    name: str
    seconds: float = 0.0
    size: int = 0
    after: tuple[int, ...] = ()
    """Numbers of the operations that must be done before; of those on the GPU, beside its order."""
    delay_s: float = 0.0
    """From then to the launch: waiting for a cycle, or an overlap that is not whole."""
    group: Group = "replicas"
    """The ranks that it joins."""
    since: int = -1


Graph = tuple[Operation, ...]


@dataclass(frozen=True)
class Micro:
    """Actions of a micro-step beside its arithmetic."""

    gathers: tuple[str, ...] = ()
    """Passes before which units are gathered: forward, backward."""
    ends: Literal["", "average", "scatter"] = ""
    """Fate of its gradients."""
    hides: bool = False
    """Whether another micro-step computes while its tokens are sent to experts and back."""
    sends_beside: bool = False
    """Whether the next pass computes while activations travel between stages."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing runs beside it."""
        return not self.gathers and not self.ends


def step_graph(recipe: Recipe, work: Pass, groups: Groups, *, alike: bool = True,
               bubble: float = 0.0) -> Graph:
    """The graph of a step.

    Args:
        recipe: the stage's layers and how they are trained.
        work: compute of a GPU, by layer.
        groups: which ranks share and which repeat the model.
        alike: whether nothing but its micro-steps changes in a step, so that one stands for more.
        bubble: micro-steps that the stage waits for others.
    """
    if recipe.paging is not None:
        return tuple(_paged(recipe, work, groups, recipe.paging, alike=alike))
    graph: list[Operation] = []
    layout = recipe.layout
    plan = _micro_steps(recipe, averaged=groups.size("replicas") > 1)
    if not alike:
        plan = [(micro, 1) for micro, times in plan for _ in range(times)]
    gathers = _state_gathers(recipe, work, groups)
    if layout.gather_overlap:
        graph += gathers[::-1]  # the first layers are in the last buckets
    before, lag = len(graph), None
    for number, (micro, times) in enumerate(plan):
        if bubble and 0 < number == len(plan) - 1:
            graph.append(Operation("bubble", "pipeline", bubble, since=before))
        before = len(graph)
        _micro_step(graph, recipe, work, groups, micro)
        if number == 0:
            _await_gathers(graph, number_of_gathers=before)
        _await_scatters(graph, layout, before, lag)
        _hold_back(graph, before, lag)
        if times > 1:
            graph.append(Operation("again", f"{times - 1} more micro-steps", size=times - 1,
                                   since=before))
            lag = _backlog(graph, before, times - 1)
    if bubble and len(plan) == 1:
        graph.append(Operation("bubble", "pipeline", bubble, since=0))
    if not layout.gather_overlap:
        sent = tuple(number for number, done in enumerate(graph) if done.kind == "scatter")
        graph += [replace(gather, after=sent) for gather in gathers]
    return tuple(graph)


def _state_gathers(recipe: Recipe, work: Pass, groups: Groups) -> list[Operation]:
    """Gathers of the parameters whose optimizer states copies of the model share."""
    if recipe.layout.shard not in ("zero1", "zero2") or groups.size("replicas") == 1:
        return []
    return [Operation("gather", name, size=elements)
            for name, elements in zip(work.names, work.elements.tolist(), strict=True)]


def _await_gathers(graph: list[Operation], number_of_gathers: int) -> None:
    """Let the first forward pass wait for the gathers that stand before it."""
    gathers = tuple(range(number_of_gathers))
    for kind, waited in (("forward", gathers[:1]), ("backward", gathers)):
        first = next(number for number, done in enumerate(graph) if done.kind == kind)
        graph[first] = replace(graph[first], after=(*graph[first].after, *waited))


def _await_scatters(graph: list[Operation], layout: Parallel, before: int,
                    lag: int | None) -> None:
    """With zero2, let a micro-step have a bucket's gradients when those before are scattered.

    Else more than one step's would be whole (Megatron-FSDP waits in
    `wait_for_previous_grad_reduce` of param_and_grad_buffer.py).
    """
    if layout.shard != "zero2":
        return
    own = [done for done in graph[before:] if done.kind == "scatter"]
    earlier = _last(graph, ("scatter",), 2 * len(own))[:-len(own)]  # the first has none before
    for scatter, number in zip(own, earlier, strict=False):
        full = scatter.after[0]
        graph[full] = replace(graph[full], after=(*graph[full].after,
                                                  number if lag is None else lag))


def _hold_back(graph: list[Operation], before: int, lag: int | None) -> None:
    """Let what a micro-step sends wait for the backlog ``lag``, if there is one."""
    if lag is not None:
        graph[before:] = [replace(done, after=(*done.after, lag)) if may_outlast(done.kind)
                          else done for done in graph[before:]]


def _backlog(graph: list[Operation], before: int, times: int) -> int | None:
    """Append the unsent traffic of ``times`` micro-steps like the last; return its number."""
    sent = [number for number, done in enumerate(graph) if may_outlast(done.kind)]
    earlier = [number for number in sent if number < before]
    if not earlier or earlier == sent:  # the first micro-steps, or quiet ones
        return None
    graph.append(Operation("backlog", graph[-1].name, size=times, since=earlier[-1],
                           after=(sent[-1],)))
    return len(graph) - 1


def _micro_steps(recipe: Recipe, *, averaged: bool) -> list[tuple[Micro, int]]:
    """The micro-steps of a step, those in a row that are alike together."""
    plan = _unhidden_micro_steps(recipe, averaged=averaged)
    if recipe.layout.gather_overlap and plan[0][1] > 1:
        plan[:1] = [(plan[0][0], 1), (plan[0][0], plan[0][1] - 1)]
    if recipe.expert_overlap == "micro-steps":
        plan[:-1] = [(replace(micro, hides=True), times) for micro, times in plan[:-1]]
    if recipe.sends_beside:
        return _sending_beside(plan, recipe.accumulation - _filling_micro_steps(recipe.layout))
    return plan


def _filling_micro_steps(layout: Parallel) -> int:
    """Micro-steps that fill and drain an interleaved pipeline.

    The last stage does all but one of its pieces for as many micro-steps as there are stages before
    the first backward pass. The last micro-step and what is measured for the bubble are among them.
    """
    return max(2, -(-layout.pipeline * (layout.interleave - 1) // layout.interleave))


def _sending_beside(plan: list[tuple[Micro, int]], count: int) -> list[tuple[Micro, int]]:
    """Let the first ``count`` micro-steps send beside their passes."""
    found = []
    for micro, times in plan:
        some = min(max(count, 0), times)
        count -= some
        found += [(replace(micro, sends_beside=True), some)] if some else []
        found += [(micro, times - some)] if times > some else []
    return found


def _unhidden_micro_steps(recipe: Recipe, *, averaged: bool) -> list[tuple[Micro, int]]:
    layout, count = recipe.layout, recipe.accumulation
    quiet = Micro()
    if not averaged:
        return [(quiet, count - 1), (quiet, 1)] if count > 1 else [(quiet, 1)]
    each = quiet
    if layout.is_sharded and layout.pipeline == 1:
        each = last = Micro(("forward", "backward"), "scatter")
    elif layout.is_sharded:
        first, last = Micro(("forward",)), Micro((), "scatter")
        if count == 1:
            return [(replace(first, ends="scatter"), 1)]
        return [(first, 1), *([(quiet, count - 2)] if count > 2 else []), (last, 1)]
    elif layout.shard == "zero2":
        each = last = Micro(ends="scatter")
    else:
        last = Micro(ends="scatter" if layout.shard == "zero1" else "average")
    # The first is no rule: nothing of others runs beside it, nor beside sends of the one after it.
    lead = 0 if each.is_quiet else min(2 if layout.pipeline > 1 else 1, count - 1)
    return [(micro, times) for micro, times in (
        *[(each, 1)] * lead, (each, count - 1 - lead), (last, 1)) if times]


def _micro_step(graph: list[Operation], recipe: Recipe, work: Pass, groups: Groups,
                micro: Micro) -> None:
    """Forward and backward pass of one batch, with all that goes beside."""
    if micro.sends_beside:  # what the backward pass before has made
        graph += _sends_beside(graph, recipe, "backward")
    first = len(graph)
    if recipe.layout.is_sharded:
        _sharded(graph, recipe, work, groups, micro)
        if micro.hides:
            _hide_exchanges(graph, first)
        return
    if recipe.layout.tensor > 1 or recipe.layout.context > 1:
        done = _split(graph, recipe, work, groups, micro)
    else:
        done = _whole(graph, recipe, work, groups, micro)
    if micro.hides:
        _hide_exchanges(graph, first)
    if micro.ends:
        graph += averages(work, done, micro.ends)
        graph += _expert_averages(recipe, groups, done)


def _whole(graph: list[Operation], recipe: Recipe, work: Pass, groups: Groups,
           micro: Micro) -> list[int]:
    """Every rank holds whole layers; experts and tables exchange before and after theirs.

    Returns the numbers of the operations that complete each backward layer.
    """
    done: list[int] = []
    passes: tuple[tuple[Kind, tuple[Work, ...]], ...] = (("forward", work.forward),
                                                         ("backward", work.layers))
    for kind, layers in passes:
        first = len(graph)
        for layer in layers:
            _exchanging(graph, groups, kind, layer, "experts")
            if kind == "backward":
                graph.append(Operation("settle", layer.name))
                done.append(len(graph) - 1)
        graph += _launches(recipe, groups, kind, first)
        _send(graph, recipe, kind, micro)
    return done


def _launches(recipe: Recipe, groups: Groups, kind: str, first: int) -> list[Operation]:
    """Wait for the host, which still launches a pass that began with operation ``first``."""
    needed = launching(recipe, groups)
    seconds = needed.forward_s if kind == "forward" else needed.backward_s
    return [Operation("launch", f"{kind} kernels", seconds, since=first)] if seconds else []


def _paged(recipe: Recipe, work: Pass, groups: Groups, paging: Paging, *,
           alike: bool) -> list[Operation]:
    """Every layer waits for its pages, whose plan has all that ranks exchange."""
    graph: list[Operation] = []
    for waits in paging.micro_steps:
        before = len(graph)
        _paged_micro_step(graph, recipe, work, groups, waits)
        if waits.times > 1 and alike:
            graph.append(Operation("again", f"{waits.times - 1} more micro-steps",
                                   size=waits.times - 1, since=before))
        else:
            for _ in range(waits.times - 1):
                _paged_micro_step(graph, recipe, work, groups, waits)
    return graph + _page("updates", paging.end_s)


def _paged_micro_step(graph: list[Operation], recipe: Recipe, work: Pass, groups: Groups,
                      waits: Waits) -> None:
    beside, first = moving(recipe), len(graph)
    for layer, wait_s in zip(recipe.model.layers, waits.forward_s, strict=True):
        graph += _page(layer.name, wait_s)
        graph.append(Operation("forward", layer.name, forward_s(recipe, layer, work.flops)
                               + beside.get(layer.name, NONE).forward_s))
    graph += _launches(recipe, groups, "forward", first)
    first = len(graph)
    for each, wait_s in zip(work.layers, waits.backward_s, strict=True):
        graph += _page(each.name, wait_s)
        graph += [Operation("backward", each.name, each.seconds), Operation("settle", each.name)]
    graph += _launches(recipe, groups, "backward", first)


def _page(name: str, wait_s: float) -> list[Operation]:
    return [Operation("page", f"pages of {name}", wait_s)] if wait_s else []


def _exchanging(graph: list[Operation], groups: Groups, kind: Kind, work: Work,
                group: Group) -> None:
    """Append a layer with what it exchanges, in chunks if it has several (`harp.angelptm.moe`).

    All chunks leave at once, one behind the other. Experts compute on each when it has come, and
    send it back behind those that left before.
    """
    if groups.size(group) == 1:
        graph.append(Operation(kind, work.name, work.seconds))
        return
    if work.chunks == 1:
        graph += _exchange(f"{work.name} in", work.before_bytes, group)
        graph.append(Operation(kind, work.name, work.seconds))
        graph += _exchange(f"{work.name} out", work.after_bytes, group)
        return
    # No all-to-all starts before the GPU has done what stands before the layer.
    graph.append(Operation(kind, f"{work.name} begins"))
    begun = len(graph) - 1
    names = [f"{work.name} {number + 1} of {work.chunks}" for number in range(work.chunks)]
    graph += [Operation("overlapped", f"{name} in", size=-(-work.before_bytes // work.chunks),
                        after=(begun,), group=group) for name in names]
    back = []
    for number, name in enumerate(names, start=1):
        graph.append(Operation(kind, name, work.seconds / work.chunks, after=(begun + number,)))
        graph.append(Operation("overlapped", f"{name} out", after=(len(graph) - 1,),
                               size=-(-work.after_bytes // work.chunks), group=group))
        back.append(len(graph) - 1)
    graph.append(Operation(kind, f"{work.name} ends", after=tuple(back)))


def _hide_exchanges(graph: list[Operation], first: int) -> None:
    """Let only the end of the micro-step that begins at ``first`` wait for tokens.

    Meanwhile the GPU computes another micro-step. The tokens of that one have arrived.
    """
    begun = _last(graph[:first], ON_GPU)
    hidden = {number for number, done in enumerate(graph[first:], first)
              if done.kind in ("exchange", "overlapped")}
    for number, done in enumerate(graph[first:], first):
        graph[number] = (replace(done, kind="overlapped", after=begun) if number in hidden else
                         replace(done, after=tuple(each for each in done.after
                                                   if each not in hidden)))
    graph.append(Operation("backward", "tokens of experts", after=tuple(sorted(hidden))))


def _exchange(name: str, nbytes: int, group: Group) -> list[Operation]:
    return [Operation("exchange", name, size=nbytes, group=group)] if nbytes else []


def _share(recipe: Recipe, layer: Layer, seconds: float) -> Work:
    """Give what a rank of a tensor or context group has of a layer."""
    nbytes = (recipe.batch * layer.alltoall_bytes(recipe.element_bytes)
              if layer.expert_tensors else 0)
    each = -(-nbytes // (recipe.layout.tensor * recipe.layout.context))
    return Work(layer.name, seconds, each, each, chunks_of(recipe, layer))


def averages(work: Pass, done: list[int], kind: Kind) -> list[Operation]:
    """Averages of the buckets, each after the operation that completes its last layer."""
    return [Operation(kind, name, size=elements, after=(done[layer],), delay_s=delay_s)
            for name, elements, layer, delay_s in zip(
                work.names, work.elements.tolist(), work.bucket_layer.tolist(),
                work.bucket_delay_s.tolist(), strict=True)]


def _expert_averages(recipe: Recipe, groups: Groups, done: list[int]) -> list[Operation]:
    """Averages of experts that several ranks hold, where the file says how many do."""
    if recipe.layout.expert is None or groups.size("expert copies") == 1:
        return []
    backward = zip(recipe.model.layers[::-1], done, strict=True)
    return [Operation("average", f"{layer.name} copies", after=(number,), group="expert copies",
                      size=sum(each.elements for each in layer.expert_tensors) // groups.expert)
            for layer, number in backward if layer.expert_tensors]


class Unit(NamedTuple):
    """A unit of parameters that is gathered at once."""

    name: str
    elements: int
    """Of what all ranks gather."""
    expert_elements: int
    """Of the experts to which tokens are sent, before a tensor group splits them."""
    forward: tuple[Work, ...]
    backward: tuple[Work, ...]
    block: str


def units(recipe: Recipe, work: Pass) -> list[Unit]:
    """The model's blocks, and what lies between them, in forward order."""
    found = []
    for name, layers in groupby(recipe.model.layers, block_of):
        some = list(layers)
        spread = sum(tensor.elements for layer in some for tensor in layer.expert_tensors)
        own = sum(tensor.elements for layer in some for tensor in layer.tensors)
        if recipe.layout.gathers_experts:
            own, spread = own + spread, 0
        pieces = _pieces(recipe, work.flops, name or some[0].name, some)
        found.append(Unit(name or some[0].name, own, spread // (recipe.layout.expert or 1),
                          tuple(forward for forward, _ in pieces),
                          tuple(backward for _, backward in pieces[::-1]), name))
    return found


def _pieces(recipe: Recipe, flops: float, name: str,
            layers: list[Layer]) -> list[tuple[Work, Work]]:
    """Work of a unit's layers, forward and backward; those to which no token is sent are joined."""
    found, beside = [], moving(recipe).get(layers[0].name, NONE)
    for sends, run in groupby(layers, lambda layer: bool(layer.expert_tensors)
                              and not recipe.layout.gathers_experts):
        for some in ([[layer] for layer in run] if sends else [list(run)]):
            forward = sum(forward_s(recipe, each, flops) for each in some) + beside.forward_s
            backward = sum(backward_s(recipe, each, flops) for each in some) + beside.backward_s
            work = _share(recipe, some[0], forward) if sends else Work(name, forward, 0, 0)
            found.append((work, work._replace(seconds=backward)))
            beside = NONE
    return found


def _sharded(graph: list[Operation], recipe: Recipe, work: Pass, groups: Groups,
             micro: Micro) -> None:
    """Units are gathered, computed and, going backward, scattered."""
    forward = units(recipe, work)
    begun = _last(graph, ("backward", "again", "bubble"))
    _pass(graph, recipe, "forward", forward, micro, groups, begun)
    begun = _last(graph, ("forward",))
    _pass(graph, recipe, "backward", forward[::-1], micro, groups, begun)


def _pass(graph: list[Operation], recipe: Recipe, kind: Literal["forward", "backward"],
          parts: list[Unit], micro: Micro, groups: Groups, begun: tuple[int, ...]) -> None:
    """One pass over the units, after the last operation of the pass before, ``begun``."""
    computed, first = list(begun), len(graph)
    for unit in parts:
        shares = _shares(recipe, unit)
        moved = [(size, group) for size, group in shares if groups.size(group) > 1]
        is_gathered = kind in micro.gathers
        is_scattered = bool(micro.ends) and kind == "backward"
        # The compute before the unit begins when the compute before that has ended.
        before = tuple(computed[-2:-1] or begun)
        gathers = [Operation("gather", f"{unit.name} {kind}", size=size, after=before, group=group)
                   for size, group in moved if is_gathered]
        graph += gathers
        gathered = tuple(range(len(graph) - len(gathers), len(graph)))
        beside = _before_block(graph, recipe, kind, unit.block)
        copied_s = (is_gathered + is_scattered) * laid_out_s(
            recipe, sum(size for size, _ in moved))
        _compute(graph, groups, kind, unit, gathered, copied_s)
        computed.append(len(graph) - 1)
        if kind == "backward":
            graph.append(Operation("settle", unit.name))
        if is_scattered:
            _scatter(graph, unit.name, groups, shares)
        _after_block(graph, recipe, kind, unit.block, beside)
    graph += _launches(recipe, groups, kind, first)
    _send(graph, recipe, kind, micro)


def _shares(recipe: Recipe, unit: Unit) -> list[tuple[int, Group]]:
    """Elements of a unit and the ranks that have them in shards, before a tensor group splits."""
    own: Group = "shard" if recipe.layout.shard == "hsdp" else "replicas"
    found = [(unit.elements, own), (unit.expert_elements, expert_shards(recipe.layout))]
    return [(size, group) for size, group in found if size]


def _compute(graph: list[Operation], groups: Groups, kind: Literal["forward", "backward"],
             unit: Unit, after: tuple[int, ...], copied_s: float) -> None:
    """Compute a unit after its gathers; tokens travel to its experts and back."""
    pieces = unit.forward if kind == "forward" else unit.backward
    for number, piece in enumerate(pieces):
        begun = len(graph)
        more_s = 0.0 if number else copied_s
        _exchanging(graph, groups, kind, piece._replace(seconds=piece.seconds + more_s), "experts")
        if not number:
            graph[begun] = replace(graph[begun], after=(*graph[begun].after, *after))


def _scatter(graph: list[Operation], name: str, groups: Groups,
             shares: list[tuple[int, Group]]) -> None:
    """Scatter a unit's gradients and, between the copies of hybrid sharding, average the shares."""
    settled = len(graph) - 1
    for size, group in shares:
        done = settled
        if groups.size(group) > 1:
            graph.append(Operation("scatter", name, size=size, after=(settled,), group=group))
            done = len(graph) - 1
        if group in ("shard", "expert shards") and groups.size("copies") > 1:
            graph.append(Operation("average", name, size=-(-size // groups.size(group)),
                                   after=(done,), group="copies"))


EACH_WAY = 2
"""Allreduces of a block in either pass."""


def _split(graph: list[Operation], recipe: Recipe, work: Pass, groups: Groups,
           micro: Micro) -> list[int]:
    """Layers are split over a group, whose times are those of one of its GPUs.

    Returns the numbers of the operations that complete each backward layer.
    """
    all_s = sum(piece.seconds for piece in work.forward)
    each = [layer.forward_s if recipe.model.is_measured else layer.forward_flops
            for layer in recipe.model.layers]
    shares, first = iter(each), len(graph)
    for name, layers in groupby(recipe.model.layers, block_of):
        beside = _before_block(graph, recipe, "forward", name)
        for exchanges, run in groupby(layers, lambda layer: bool(layer.expert_tensors)):
            some = [(layer, all_s * next(shares) / sum(each)) for layer in run]
            if exchanges:
                for layer, seconds in some:
                    _exchanging(graph, groups, "forward", _share(recipe, layer, seconds),
                                "experts")
            else:
                graph.append(Operation("forward", name or some[0][0].name,
                                       sum(seconds for _, seconds in some)))
        _after_block(graph, recipe, "forward", name, beside)
    graph += _launches(recipe, groups, "forward", first)
    _send(graph, recipe, "forward", micro)
    done: list[int] = []
    first = len(graph)
    backward = zip(recipe.model.layers[::-1], work.layers, strict=True)
    for name, pairs in groupby(backward, _block_of_pair):
        beside = _before_block(graph, recipe, "backward", name)
        for layer, work_of in pairs:
            _exchanging(graph, groups, "backward", _share(recipe, layer, work_of.seconds),
                        "experts")
            graph.append(Operation("settle", layer.name))
            done.append(len(graph) - 1)
        _after_block(graph, recipe, "backward", name, beside)
    graph += _launches(recipe, groups, "backward", first)
    _send(graph, recipe, "backward", micro)
    return done


def _block_of_pair(pair: tuple[Layer, Work]) -> str:
    return block_of(pair[0])


def _before_block(graph: list[Operation], recipe: Recipe, kind: str,
                  block: str) -> tuple[int, ...]:
    """Inputs that a block waits for: keys and values, and what it computes again.

    Returns the number of the operation that sends pieces beside the block, if there is one.
    """
    if not block:
        return ()
    again = kind == "backward" and recipe.recompute == "full"
    if recipe.layout.context > 1:
        graph += [Operation("collect", f"{block} keys", size=_key_bytes(recipe),
                            group="context")] * (1 + again)
    if recipe.layout.tensor > 1 and again:
        graph += _reduces(recipe, block)
    if not recipe.layout.tensor_overlap:
        return ()
    begun = _last(graph, ON_GPU)
    hidden = _activation_bytes(recipe) - _waited_bytes(recipe)
    graph.append(Operation("overlapped-reduce", f"{block} activations", group="tensor",
                           size=hidden * EACH_WAY * (1 + again), after=begun))
    return (len(graph) - 1,)


def _after_block(graph: list[Operation], recipe: Recipe, kind: str, block: str,
                 beside: tuple[int, ...]) -> None:
    """Results that others wait for: gradients of keys and values, and activations."""
    if not block:
        return
    if recipe.layout.context > 1 and kind == "backward":
        graph.append(Operation("spread", f"{block} keys", size=_key_bytes(recipe),
                               group="context"))
    if recipe.layout.tensor > 1:
        graph += _reduces(recipe, block, beside)


def _reduces(recipe: Recipe, block: str, after: tuple[int, ...] = ()) -> list[Operation]:
    return [Operation("reduce", f"{block} activations", size=_waited_bytes(recipe), after=after,
                      group="tensor")] * EACH_WAY


def _waited_bytes(recipe: Recipe) -> int:
    """Bytes of an allreduce of activations that no product hides."""
    nbytes = _activation_bytes(recipe)
    return -(-nbytes // recipe.layout.tensor) if recipe.layout.tensor_overlap else nbytes


def _activation_bytes(recipe: Recipe) -> int:
    """Bytes between two blocks, of the tokens that a rank has."""
    nbytes = recipe.batch * recipe.model.activations * recipe.element_bytes
    return -(-nbytes // recipe.layout.context)


def _key_bytes(recipe: Recipe) -> int:
    """Bytes of the keys and values of all tokens, for the heads that a rank has."""
    model = recipe.model
    each = model.shape.key_elements if model.shape is not None else 0
    return -(-recipe.batch * model.tokens * each * recipe.element_bytes // recipe.layout.tensor)


def _last(graph: Sequence[Operation], kinds: Container[str], count: int = 1) -> tuple[int, ...]:
    """Numbers of the last ``count`` operations of some kinds; it looks back no further than them.

    A step of many micro-steps has a long graph, and each pass asks.
    """
    found = (number for number in reversed(range(len(graph))) if graph[number].kind in kinds)
    return tuple(islice(found, count))[::-1]


def _send(graph: list[Operation], recipe: Recipe, kind: Kind, micro: Micro) -> None:
    """End a pass: its results go to other stages, at once or beside the pass that follows.

    There it waits for what the pass before has sent beside it. A backward pass's results leave when
    the next micro-step begins; those of the last one of such micro-steps are sent beside the first.
    """
    if recipe.layout.pipeline == 1:
        return
    if not micro.sends_beside:
        graph += _sends(recipe, kind)
        return
    graph.append(Operation(kind, "activations of the next pass", after=_last(
        graph, ("overlapped-send",), _sends_each(recipe.layout))))
    if kind == "forward":
        graph += _sends_beside(graph, recipe, kind)


def _sends(recipe: Recipe, kind: str) -> list[Operation]:
    """Activations, or their gradients, to the neighbours of each piece of a stage."""
    layout = recipe.layout
    size = -(-_activation_bytes(recipe) // layout.tensor)
    return [Operation("send", f"{kind} to the next stage", size=size,
                      group="stages")] * _sends_each(layout)


def _sends_each(layout: Parallel) -> int:
    """Exchanges with neighbours in a pass: one a piece, but where a V has nothing but its ends."""
    return 1 if layout.is_v and layout.pipeline == 2 else layout.interleave


def _sends_beside(graph: list[Operation], recipe: Recipe, kind: str) -> list[Operation]:
    """The same beside the GPU, as soon as it has done what stands in the graph."""
    begun = _last(graph, ON_GPU)
    return [replace(send, kind="overlapped-send", after=begun) for send in _sends(recipe, kind)]
