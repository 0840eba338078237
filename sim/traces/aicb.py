"""SimAI's workload text, which AICB writes, as what each rank of a job does.

The first line says how a model is split, the second counts the lines after it, and each of these is
a layer: name, -1, then compute time, collective and its bytes for the forward pass, the gradient of
its input and that of its weights, and a last time that is not used here (aliyun/SimAI:
astra-sim-alibabacloud/astra-sim/workload/Workload.cc; aliyun/aicb:
workload_generator/SimAI_training_workload_generator.py). Times are nanoseconds, bytes those of the
whole collective.

A rank does as SimAI's loop ``fwd_in_bckwd`` without checkpoints: forward through the layers, each
collective waited for; then backward, where a layer's weight gradient comes first and its collective
runs beside what follows, and the collective of its input gradient is waited for. The first layer
has no input gradient. The end waits for all collectives. Accumulation is as listed: AICB writes
each micro-step's layers.

Collectives are of the tensor-parallel group, those of weight gradients of the data-parallel one;
``_EP`` means experts' ranks, ``_DP_EP`` ranks that hold the same experts. Tensor-parallel ranks are
neighbours, and experts are spread over neighbours among those of a data-parallel group.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from sim.schema.input_errors import Problem, listing, show
from sim.traces.job_trace import JobTrace, Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAGIC = b"HYBRID_TRANSFORMER"
FIELDS = 12
COLLECTIVES = {"ALLREDUCE": "all-reduce", "ALLGATHER": "all-gather",
               "REDUCESCATTER": "reduce-scatter", "ALLTOALL": "all-to-all"}
KINDS = {"_DP_EP": "expert copies", "_EP": "experts", "": "tensor"}
"""Group of each ending, the longest first; without one, weight gradients have "data"."""


class _Part(NamedTuple):
    """A layer's forward pass or one of its gradients."""

    name: str
    seconds: float
    collective: str
    group: str
    nbytes: int


class _Split(NamedTuple):
    """Sizes of the groups of ranks."""

    ranks: int
    tensor: int
    expert: int

    def members(self, kind: str, rank: int) -> tuple[int, ...]:
        """Ranks of the group of that kind that ``rank`` is in."""
        wide = self.tensor * self.expert
        if kind == "tensor":
            first = rank - rank % self.tensor
            return tuple(range(first, first + self.tensor))
        if kind == "data":
            return tuple(range(rank % self.tensor, self.ranks, self.tensor))
        if kind == "experts":
            first = rank - rank % wide + rank % self.tensor
            return tuple(range(first, first + wide, self.tensor))
        return tuple(range(rank % wide, self.ranks, wide))


def job_of(data: bytes, ranks: int, most_ops: int) -> JobTrace:
    """Operations of ``ranks`` ranks; raises Problem."""
    try:
        lines = [line for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise Problem("is no text", allowed="SimAI's workload") from None
    split = _split(lines[0], ranks)
    layers = [_layer(number, line) for number, line in enumerate(lines[2:], 3)]
    if len(lines) < 2 or lines[1].strip() != str(len(layers)) or not layers:
        raise Problem(f"line 2 says {show(lines[1].strip() if len(lines) > 1 else '')} and "
                      f"{len(layers)} layers follow", allowed="their number")
    if 6 * len(layers) * ranks > most_ops:
        raise Problem(f"{6 * len(layers) * ranks:,} operations", allowed=f"{most_ops:,}")
    groups: dict[str, tuple[int, ...]] = {}
    made = []
    for rank in range(ranks):
        names = {}
        for kind in ("tensor", "data", "experts", "expert copies"):
            members = split.members(kind, rank)
            names[kind] = f"{kind} {members[0]}"
            groups[names[kind]] = members
        made.append(tuple(_ops(layers, names, groups)))
    return JobTrace(tuple(made), groups)


def _split(line: str, ranks: int) -> _Split:
    kind, *words = line.split()
    if kind != "HYBRID_TRANSFORMER_FWD_IN_BCKWD":
        raise Problem(f"a workload of the kind {show(kind)}", found=kind,
                      allowed="HYBRID_TRANSFORMER_FWD_IN_BCKWD")
    given = dict(re.findall(r"(\w+):?\s+(\d{1,12})(?=\s|$)", " ".join(words)))
    missing = [key for key in ("model_parallel_NPU_group", "ep", "pp", "all_gpus")
               if key not in given]
    if missing:
        raise Problem(f"line 1 has no {missing[0]}", allowed=f"{missing[0]}: and a whole number")
    tensor, expert, pipeline, count, checkpoints = (
        int(given.get(key, 0)) for key in ("model_parallel_NPU_group", "ep", "pp", "all_gpus",
                                           "checkpoints"))
    if pipeline != 1 or checkpoints:
        raise Problem(f"pp: {pipeline} and checkpoints: {checkpoints}", allowed="pp: 1 and "
                      "checkpoints: 0, since one stage stands for all")
    if count != ranks:
        raise Problem(f"a job of {count} GPUs for {ranks} GPUs", allowed="one GPU a rank")
    if not tensor or not expert or count % (tensor * expert):
        raise Problem(f"groups of {tensor} and {expert} do not divide {count} GPUs",
                      allowed="numbers that do")
    return _Split(count, tensor, expert)


def _layer(number: int, line: str) -> tuple[_Part, _Part, _Part]:
    """Forward pass, input gradient and weight gradient of a line."""
    fields = line.split()
    if len(fields) != FIELDS:
        raise Problem(f"line {number} has {len(fields)} fields", allowed=f"{FIELDS}")
    forward, inputs, weights = (
        _part(number, f"{fields[0]} {what}", fields[start:start + 3], default)
        for what, start, default in (("forward", 2, "tensor"), ("input gradient", 5, "tensor"),
                                     ("weight gradient", 8, "data")))
    return forward, inputs, weights


def _part(number: int, name: str, fields: Sequence[str], default: str) -> _Part:
    time_ns, collective, size = fields
    for text in (time_ns, size):
        if not re.fullmatch(r"\d{1,18}", text):
            raise Problem(f"line {number} has {show(text)} as time or size",
                          allowed="a whole number")
    if collective == "NONE":
        return _Part(name, int(time_ns) * 1e-9, "", "", 0)
    ending = next(ending for ending in KINDS if collective.endswith(ending))
    base = collective.removesuffix(ending)
    if base not in COLLECTIVES:
        raise Problem(f"line {number} has the collective {show(collective)}", found=collective,
                      names=[*COLLECTIVES], allowed="NONE, " + listing([*COLLECTIVES])
                      + ", with _EP or _DP_EP behind it")
    return _Part(name, int(time_ns) * 1e-9, COLLECTIVES[base],
                 KINDS[ending] if ending else default, int(size))


def _ops(layers: Sequence[tuple[_Part, _Part, _Part]], names: dict[str, str],
         groups: dict[str, tuple[int, ...]]) -> Iterator[Op]:
    """Operations of a rank, numbered as they come."""
    count, last = 0, -1
    beside: list[int] = []
    order = [(part, True) for part, _, _ in layers]
    for number in range(len(layers) - 1, -1, -1):
        order.append((layers[number][2], False))
        if number:
            order.append((layers[number][1], True))
    for part, waited in order:
        if part.seconds:
            yield Op(part.name, "compute", (last,) if last >= 0 else (), part.seconds)
            last, count = count, count + 1
        group = names.get(part.group, "")
        if not part.collective or not part.nbytes or len(groups[group]) < 2:
            continue
        share = len(groups[group]) if part.collective == "all-gather" else 1
        yield Op(part.name, "collective", (last,) if last >= 0 else (),
                 nbytes=-(-part.nbytes // share), collective=part.collective, group=group)
        if waited:
            last = count
        else:
            beside.append(count)
        count += 1
    yield Op("end", "none", tuple(dict.fromkeys([*([last] if last >= 0 else []), *beside])))
