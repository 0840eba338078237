"""Search for keys without effect: change each value of a file and simulate again.

A user should know of a key that changes nothing. The search replaces each value by far larger or
smaller ones, or by another word, and simulates the rows until an event happens at another time than
before, which is soon for most keys. If no other value changes any row or interval, the key is idle.
If all keys below a key are idle, only the upper one is reported. Scenarios are there to be
compared, so a key may change one and not another: a key of several entries of a list is idle only
if it is idle in all of them.

A parameter set holds all costs of a stack, whatever a file uses of it, so only a whole set can be
idle. Free text (names, descriptions, sources) is skipped, and required keys give no warning.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.answer.clock import Clock
from sim.answer.expectation import find_expect
from sim.answer.parallel import map_shared
from sim.answer.scenario import Settings, make_run
from sim.answer.uncertainty import unknowns
from sim.cluster.cluster import Cluster
from sim.schema.file_variants import LEFT_OUT, Variants
from sim.schema.input_errors import Problem, TopologyError
from sim.schema.scenario_keys import ExpectCollective
from sim.schema.topology_model import is_of_packet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sim.records.results import ScenarioResult
    from sim.schema.input_errors import Path
    from sim.schema.scenario_keys import Scenario
    from sim.schema.topology_model import Topology

    Rows = dict[tuple[int, int], tuple[list[float], list[ScenarioResult]]]

MOST_EVENTS = 40_000
"""Events of all rows above which there is no search: each key may need all rows again."""
MOST_LEAVES = 1000
"""Values of the file above which there is no search (a long list of cables)."""
MOST_GPUS = 2048
"""GPUs above which there is no search: each value builds the cluster again."""
LABELS = 6
"""Entries of a list without another valid value, after which the key counts as a label."""
ROUNDING = 1e-9
_SIMULATED_ALIKE = frozenset({"name", "description", "scenarios", "stacks", "frameworks", "expect",
                              "fitted_on"})
"""Keys that reach a row only through its own scenario, stack and framework."""
_ANSWERED = ("nvlink",)
"""A host group's key that most GPUs ask for: whoever gives it for hosts of one GPU is right too."""
_SETS = frozenset({"stacks", "frameworks"})
_CLUSTER = frozenset({"hosts", "vpc", "fabric", "seed", "workload"})
"""Keys from which a `Cluster` is built."""


class DifferentError(Exception):
    """An event happened at another time than before."""


class _Checker(Clock):
    """Raises DifferentError at the first event that happens at another time."""

    def __init__(self, times: Sequence[float]) -> None:
        super().__init__()
        self._times = times

    def step(self) -> None:
        if self.events >= len(self._times) or self.peek() != self._times[self.events]:
            raise DifferentError
        super().step()


@dataclass(frozen=True)
class _Search:
    """The unchanged file and the events of its rows."""

    cluster: Cluster
    variants: Variants
    rows: Rows

    def changes(self, path: Path, other: Topology) -> bool:
        """Whether ``other``, which differs at ``path``, has another row or interval."""
        topology = self.cluster.topology
        if _shape(other) != _shape(topology) or unknowns(other) != unknowns(topology):
            return True
        try:
            cluster = self._cluster(path, other)
            # Most keys change every row of several GPUs, so rows that take least come first, and
            # of them those that use every path.
            return any(self._differs(cluster, number, gpus) for number, gpus in sorted(
                _rows(other, topology),
                key=lambda row: (row[1], topology.scenarios[row[0]].routing != "spray")))
        except TopologyError:
            return True

    def _cluster(self, path: Path, other: Topology) -> Cluster:
        if path[0] in _CLUSTER:
            return Cluster(other)
        cluster = copy.copy(self.cluster)
        cluster.topology = other
        return cluster

    def _differs(self, cluster: Cluster, number: int, gpus: int) -> bool:
        times, before = self.rows[number, gpus]
        scenario = cluster.topology.scenarios[number]
        clock = _Checker(times)
        try:
            after = make_run(cluster, scenario, gpus, Settings(name_limits=False), clock).go()
        except DifferentError:
            return True
        return clock.events != len(times) or not all(map(_same, before, after))


def idle_keys(cluster: Cluster, rows: Rows, workers: int | None = None) -> list[TopologyError]:
    """Find the keys that change no row; each is a sentence with its place in the file.

    The search takes long where `too_much_to_search` says so.

    Args:
        cluster: the built topology, from a file.
        rows: times of a `Recorder` and results of all rows, by number of scenario and of GPUs.
        workers: processes; None: one for each core.
    """
    topology = cluster.topology
    if topology.plain is None:
        return []
    variants = Variants(topology.plain, topology.folder)
    alike: dict[Path, list[Path]] = {}
    for path in variants.leaves():
        if path[0] == "lab" or is_of_packet(path) or _is_of_collective(topology, path):
            continue  # of another fidelity, or for sim.validate
        alike.setdefault(tuple(0 if isinstance(part, int) else part for part in path),
                         []).append(path)
    states = map_shared(_state, _Search(cluster, variants, rows), list(alike.values()), workers)
    idle, at_work = ([path for paths, state in zip(alike.values(), states, strict=True)
                      if state == wanted for path in paths] for wanted in ("idle", "at work"))
    if topology.workload.trace is not None:
        at_work.append(("workload", "trace", "prefix"))  # there are no other traces to try
    named = dict.fromkeys(_topmost(path, at_work) for path in idle)
    return [topology.error(Problem("has no effect on any row", path=path, at_key=True))
            for path in named if not (path[0] in _SETS and len(path) > 2)
            and path[2:] != _ANSWERED and variants.make(path, LEFT_OUT) is not None]


def _is_of_collective(topology: Topology, path: Path) -> bool:
    """Whether the path is that of a figure of a collective."""
    return (path[0] == "expect" and len(path) > 1
            and isinstance(topology.figures[int(path[1])], ExpectCollective))


def too_much_to_search(cluster: Cluster, rows: Rows) -> str | None:
    """Reason why a search would take longer than some seconds; None if it would not."""
    plain = cluster.topology.plain
    values = 0 if plain is None else sum(1 for _ in Variants(plain).leaves())
    events = sum(len(times) for times, _ in rows.values())
    for count, most, what in ((cluster.gpus, MOST_GPUS, "GPUs"), (events, MOST_EVENTS, "events"),
                              (values, MOST_LEAVES, "values")):
        if count > most:
            return f"{count:,} {what}, more than {most:,}"
    return None


def _state(search: _Search, paths: Sequence[Path]) -> str:
    """``idle``, ``at work``, or ``label`` (a name, a reference) if no other value was valid."""
    tried = False
    for number, path in enumerate(paths, 1):
        for _, other in search.variants.others(path):
            tried = True
            if search.changes(path, other):
                return "at work"
        if number == LABELS and not tried:
            break
    return "idle" if tried else "label"


def _topmost(path: Path, at_work: Sequence[Path]) -> Path:
    """The highest key above an idle value below which nothing is at work."""
    for length in range(1, len(path)):
        if not any(other[:length] == path[:length] for other in at_work):
            return path[:length]
    return path


def _shape(topology: Topology) -> list[tuple[int, ...]]:
    return [topology.gpu_counts(scenario) for scenario in topology.scenarios]


def _rows(other: Topology, before: Topology) -> Iterator[tuple[int, int]]:
    """Rows that may differ."""
    whole = any(getattr(other, name) != getattr(before, name)
                for name in type(other).model_fields if name not in _SIMULATED_ALIKE)
    for number, (scenario, old) in enumerate(zip(other.scenarios, before.scenarios, strict=True)):
        if whole or scenario != old or _sets(other, scenario) != _sets(before, old):
            for gpus in other.gpu_counts(scenario):
                yield number, gpus
        elif other.expect != before.expect:
            for gpus in other.gpu_counts(scenario):
                if _expectations(other, scenario, gpus) != _expectations(before, old, gpus):
                    yield number, gpus


def _sets(topology: Topology, scenario: Scenario) -> list[object]:
    """Host stack and frameworks of a scenario, whole."""
    settings = Settings()
    workloads = [job.workload or topology.workload for job in topology.jobs_of(scenario)]
    names = {scenario.framework or workload.framework
             for workload in workloads or [topology.workload]}
    return [settings.stack(topology, scenario.stack),
            *(settings.framework(topology, name) for name in sorted(names))]


def _expectations(topology: Topology, scenario: Scenario, gpus: int) -> list[object]:
    return [find_expect(topology, scenario.name, count, job or "")
            for job, count in topology.rows(scenario) if job or count == gpus]


def _same(before: ScenarioResult, after: ScenarioResult) -> bool:
    """Whether two results are equal except for rounding."""
    return ((before.expect, before.notes, before.memory, before.cost)
            == (after.expect, after.notes, after.memory, after.cost)
            and math.isclose(before.images_per_s, after.images_per_s, rel_tol=ROUNDING)
            and math.isclose(before.step_s, after.step_s, rel_tol=ROUNDING))
