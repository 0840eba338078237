"""The best cuts of a model into stages: a pure function of its graph, the links and the memory.

    cut(graph, 4)                                   the slowest stage is as fast as can be
    cut(graph, 4, link=Link(12.5e9, 20e-6))         ... over 100 Gb/s
    cut(graph, 4, memory=Memory(16 << 30, "1f1b", microbatches=8))
    cut(graph, 4, gaps=graph.layer_boundaries)      ... between layers alone

A stage is a range of operators, so a cut is optimal for the order in which the graph has them. Its
time for a microbatch is that of its operators, forward and backward, and of what it waits for:
values from the stage before, gradients from the stage behind. Its sends leave while it computes.
A pipeline's rate is that of its slowest stage (PipeDream, SOSP 2019, section 3.1, has
the same search over layers). With the best time for k stages up to each boundary, that for k + 1
follows; the search takes O(stages * boundaries^2).

A stage's memory: parameters with all their states; buffers to receive into, which
`torch.distributed.pipelining` has for each microbatch; what the operators keep and the values that
leave, for each microbatch under way. A received value that is also kept counts twice, so this is
an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from harp.angelptm.page_plan import CapacityError
from harp.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harp.angelptm.stages.operator_graph import Floats, Graph

SCHEDULES = ("gpipe", "1f1b", "interleaved")


class CutError(ValueError):
    """A model cannot be cut like this; the message is one sentence."""


@dataclass(frozen=True)
class Link:
    """The boundary between two stages.

    The defaults are a guess of low confidence, 10 Gb/s Ethernet and kernel TCP: give your own.
    """

    bytes_per_s: float = 1.25e9
    latency_s: float = 50e-6

    def seconds(self, size: Floats) -> Floats:
        """Time of a message; none is sent where there is nothing."""
        return np.where(size > 0, size / self.bytes_per_s + self.latency_s, 0.0)


@dataclass(frozen=True)
class Memory:
    """Resources of a rank, and a step's use of them."""

    bytes: int
    """For all stages of a rank; each has an equal part."""
    schedule: str = "1f1b"
    microbatches: int = 8
    ranks: int | None = None
    """As many as stages, unless several stages of a rank interleave."""
    states: float = 4.0
    """States over parameters: 4 with gradients and two moments of the same width (Adam)."""


@dataclass(frozen=True)
class Cuts:
    """Cuts of a model, and the figures expected of it."""

    gaps: tuple[int, ...]
    """Boundaries from 0 to the end: one more than stages."""
    seconds: tuple[float, ...]
    """Of a microbatch in each stage."""

    @property
    def slowest_s(self) -> float:
        """Time of the slowest stage."""
        return max(self.seconds)


def cut(graph: Graph, stages: int, *, link: Link | Sequence[Link] | None = None,
        memory: Memory | None = None, gaps: Sequence[int] | None = None) -> Cuts:
    """Find the cuts with the fastest slowest stage.

    ``link`` is one for all cuts or one for each. Every stage reads a parameter if that is possible:
    torch's optimizers refuse a rank that has none.

    Raises:
        CutError: there are fewer gaps than cuts, or links of another number.
        CapacityError: no cut fits into the memory.

    """
    ends = [0, *(graph.boundaries if gaps is None else gaps), len(graph.operators)]
    if not 1 <= stages <= len(ends) - 1:
        raise CutError(f"{stages} stages are wanted: the model can be cut into 1 to "
                       f"{len(ends) - 1}")
    links = _links(link, stages)
    at = np.array(ends)
    compute = graph.seconds[at][None, :] - graph.seconds[at][:, None]
    need = _Need(graph, at, stages, memory) if memory is not None else None
    times = []  # times[k][a, b]: of the k-th stage with the operators from ends[a] to ends[b]
    for stage in range(stages):
        here = compute.copy()
        if stage:
            here += links[stage - 1].seconds(graph.crossing_bytes[at])[:, None]
        if stage < stages - 1:
            here += links[stage].seconds(graph.gradient_bytes[at])[None, :]
        here[np.tril_indices(len(ends))] = np.inf
        times.append(here if need is None else
                     np.where(need.bytes(stage) <= need.part, here, np.inf))
    reading = graph.parameter_readers[at]
    idle = reading[:, None] == reading[None, :]
    chosen, slowest = _search([np.where(idle, np.inf, here) for here in times])
    if not np.isfinite(slowest):
        chosen, slowest = _search(times)
    if not np.isfinite(slowest):
        assert need is not None
        raise CapacityError(need.too_much(stages))
    return Cuts(tuple(ends[one] for one in chosen),
                tuple(float(times[stage][a, b])
                      for stage, (a, b) in enumerate(pairwise(chosen))))


def _search(times: list[Floats]) -> tuple[list[int], float]:
    """Choose an end for each stage, so that the largest of their times is smallest."""
    best = times[0][0]
    came: list[np.ndarray] = []
    for here in times[1:]:
        through = np.maximum(best[:, None], here)
        came.append(np.argmin(through, axis=0))
        best = np.min(through, axis=0)
    chosen = [len(best) - 1]
    for back in reversed(came):
        chosen.append(int(back[chosen[-1]]))
    return [0, *reversed(chosen)], float(best[-1])


def _links(link: Link | Sequence[Link] | None, stages: int) -> list[Link]:
    if link is None or isinstance(link, Link):
        return [link or Link()] * (stages - 1)
    if len(link) != stages - 1:
        raise CutError(f"{len(link)} links are given: {stages} stages have {stages - 1}")
    return list(link)


class _Need:
    """Memory that ranges need as some stage."""

    def __init__(self, graph: Graph, at: np.ndarray, stages: int, memory: Memory) -> None:
        self.memory = memory
        ranks = memory.ranks or stages
        self.under_way = in_flight(memory.schedule, stages, ranks, memory.microbatches)
        self.part = memory.bytes / (stages // ranks)
        self.states = memory.states * np.array([graph.parameters_from(a)[at] for a in at])
        self.saved = np.array([graph.saved_from(a)[at] for a in at])
        self.values, self.gradients = graph.crossing_bytes[at], graph.gradient_bytes[at]

    def bytes(self, stage: int) -> Floats:
        """From the first boundary of a pair to the second."""
        values, gradients = self.values[:, None], self.gradients[None, :]
        need: Floats = (self.states + self.memory.microbatches * (values + gradients)
                        + self.under_way[stage] * (self.saved + self.values[None, :]))
        return need

    def too_much(self, stages: int) -> str:
        """Say that no cut fits, and how much the best one needs."""
        tables = []
        for stage in range(stages):
            table = self.bytes(stage)
            table[np.tril_indices(len(table))] = np.inf
            tables.append(table)
        least = _search(tables)[1]
        return (f"no cut into {stages} stages fits into {self.part / 2**20:.1f} MiB a stage: the "
                f"largest stage needs {least / 2**20:.1f} MiB at least, with schedule "
                f"{self.memory.schedule} and {self.memory.microbatches} microbatches")


def in_flight(schedule: str, stages: int, ranks: int, microbatches: int) -> list[int]:
    """Return how many microbatches of each stage wait at most for their backward pass.

    The orders are those of `torch.distributed.pipelining` (schedules.py of torch 2.13).
    """
    if schedule not in SCHEDULES:
        raise CutError(f"{schedule!r} is no schedule{did_you_mean(schedule, SCHEDULES)}; "
                       f"possible are {', '.join(SCHEDULES)}")
    if schedule != "interleaved" and ranks != stages:
        raise CutError(f"schedule {schedule} has one stage a rank: {stages} stages on {ranks} "
                       "ranks need interleaved")
    if stages % ranks:
        raise CutError(f"{stages} stages are wanted on {ranks} ranks: a multiple is possible")
    if schedule == "gpipe":
        return [microbatches] * stages
    if schedule == "1f1b":
        return [min(stages - stage, microbatches) for stage in range(stages)]
    most = [0] * stages
    for rank in range(ranks):
        _walk_interleaved(rank, ranks, stages // ranks, microbatches, most)
    return most


def _walk_interleaved(rank: int, ranks: int, local: int, microbatches: int,
                      most: list[int]) -> None:
    """Count what is under way on a rank of the interleaved schedule."""
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:
        raise CutError(f"{microbatches} microbatches are wanted on {ranks} interleaved ranks: a "
                       f"multiple of {rounds} is possible")
    group, total = microbatches // rounds, microbatches * local
    warm = min((local - 1) * group + 2 * (ranks - 1 - rank), total)
    now = [0] * local
    for step in range(warm + total):
        if step < total:
            forward = (step // group) % local
            now[forward] += 1
            most[rank + ranks * forward] = max(most[rank + ranks * forward], now[forward])
        if step >= warm:
            now[local - 1 - ((step - warm) // group) % local] -= 1
