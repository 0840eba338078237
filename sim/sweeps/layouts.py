"""Search of a model's layout: the Pareto front of speed and memory.

Layouts (`sim.answer.layout_choices`) are simulated as points of a sweep, a few at a time. One is
left out where another is as fast as its bound and needs no more memory, or where it could not be
half as fast as the best: the front that is printed is then the same as if it had run. A search that
runs out of time says how many might still have changed it.

The next ones are those that look fastest: by their bound, times the share of the bound that layouts
with the same part (`PARTS`) have reached at best, of the part where that is least. A part of
which nothing is known looks as fast as its bound, so every part is tried early.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.sweeps.executor import each_outcome
from sim.sweeps.result_table import OF_ROWS, non_dominated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.answer.layout_choices import Choice
    from sim.answer.progress import Advance
    from sim.schema.scenario_keys import Scenario
    from sim.schema.topology_model import Topology
    from sim.sweeps.study import Outcome, Study

SLOWEST = 0.5
"""Share of the best layout's speed below which none is shown."""
ROUND = 8
"""Layouts that run before it is decided again which ones are worth it."""
PARTS = (("tensor", "shard"), ("pipeline",), ("context",))
"""Keys of a layout from which its share of its bound is estimated."""


@dataclass(frozen=True)
class Tried:
    """A layout and the row of its simulation."""

    choice: Choice
    row: dict[str, Any]
    """Cells under `sim.sweeps.result_table.OF_ROWS`."""

    @property
    def speed(self) -> float:
        """Samples a second."""
        return float(self.row["images_per_s"])


@dataclass(frozen=True)
class Search:
    """Findings of a search."""

    samples: int
    front: tuple[Tried, ...]
    """The fastest first."""
    tried: int
    refused: int
    """Layouts that the simulator refused."""
    open: int
    """Layouts that were not reached and might have changed the front."""
    of: int


@dataclass(frozen=True)
class Means:
    """Place and duration of a search."""

    budget_s: float
    workers: int | None = None
    dask: str | None = None


def search(study: Study, scenario: Scenario, topology: Topology, found: Sequence[Choice],
           samples: int, means: Means, advance: Advance) -> Search:
    """Simulate the layouts that may be on the front.

    Args:
        study: the file, with the one scenario.
        scenario: what is split otherwise.
        topology: the file as it is.
        found: layouts, the one with the least bound first.
        samples: samples of a step.
        means: where, and for how long.
        advance: moves a bar of as many seconds as the budget.
    """
    plain = _plain_scenario(topology, scenario)
    began_s, shown_s = time.monotonic(), 0.0
    done: list[Tried] = []
    refused, left = 0, list(found)
    while left := _worth_it(left, done, samples):
        passed_s = min(time.monotonic() - began_s, means.budget_s)
        advance(passed_s - shown_s, f"{len(done)} simulated, {len(left)} may be better")
        shown_s = passed_s
        if passed_s >= means.budget_s:
            break
        left = _fastest_first(left, done, samples)
        now = {(*topology.changes, *changes_of(plain, choice)): choice for choice in left[:ROUND]}
        left = left[ROUND:]
        # A Dask cluster knows tasks by all that they depend on; here they are this process's own.
        points = [(study.key(changes) if means.dask else "", changes) for changes in now]
        for outcome in each_outcome(study, points, means.workers, means.dask):
            row = _row(outcome)
            if row is None:
                refused += 1
            else:
                done.append(Tried(now[outcome.changes], row))
    done.sort(key=lambda each: (-each.speed, each.choice.memory, each.choice.text))
    return Search(samples, _front(done), len(done), refused, len(left), len(found))


def changes_of(plain: dict[str, Any], choice: Choice) -> tuple[str, ...]:
    """A layout as arguments of ``--set``: one scenario, and how its steps are made."""
    scenario = {key: value for key, value in plain.items()
                if key not in ("tensor", "parallel", "expert_chunks", "expert_overlap")}
    return (f"scenarios={json.dumps([scenario | choice.scenario])}", "expect=[]",
            *(f"workload.{key}={value}" for key, value in choice.workload.items()))


def _plain_scenario(topology: Topology, scenario: Scenario) -> dict[str, Any]:
    """A scenario as the file has it, at its largest number of GPUs."""
    assert topology.plain is not None
    number = [each.name for each in topology.scenarios].index(scenario.name)
    plain: dict[str, Any] = dict(topology.plain["scenarios"][number])
    if "gpus" in plain:
        plain["gpus"] = [topology.gpu_counts(scenario)[-1]]
    return plain


def _worth_it(left: Sequence[Choice], done: Sequence[Tried], samples: int) -> list[Choice]:
    """Layouts that may still be on the front."""
    best = max((each.speed for each in done), default=0.0)
    kept = []
    for choice in left:
        most = samples / choice.least_s
        if most >= SLOWEST * best and not any(
                each.speed >= most and each.choice.memory <= choice.memory for each in done):
            kept.append(choice)
    return kept


def _fastest_first(left: Sequence[Choice], done: Sequence[Tried], samples: int) -> list[Choice]:
    """Layouts by how fast they look, no two of the same unknown part among the first."""
    reached: dict[tuple[Any, ...], float] = {}
    for each in done:
        share = each.speed * each.choice.least_s / samples
        for key in _parts(each.choice):
            reached[key] = max(reached.get(key, 0.0), share)
    looks = []
    for number, choice in enumerate(left):
        keys = _parts(choice)
        share = min(reached.get(key, 1.0) for key in keys)
        unknown = [key for key in keys if key not in reached]
        looks.append((-share / choice.least_s, number, choice))
        for key in unknown:  # the next ones of it can wait until this one is known
            reached[key] = 0.0
    return [choice for *_, choice in sorted(looks, key=lambda look: look[:2])]


def _parts(choice: Choice) -> list[tuple[Any, ...]]:
    return [(*part, *(getattr(choice.layout, key) for key in part)) for part in PARTS]


def _row(outcome: Outcome) -> dict[str, Any] | None:
    if outcome.error is not None:
        return None
    return dict(zip(OF_ROWS, outcome.rows[-1], strict=True))


def _front(done: Sequence[Tried]) -> tuple[Tried, ...]:
    if not done:
        return ()
    costs = np.array([[-each.speed, float(each.choice.memory)] for each in done])
    best = max(each.speed for each in done)
    front, seen = [], set()
    for each, on in zip(done, non_dominated(costs), strict=True):
        equal = each.speed, each.choice.memory
        if on and each.speed >= SLOWEST * best and equal not in seen:  # of equals the first
            front.append(each)
            seen.add(equal)
    return tuple(front)
