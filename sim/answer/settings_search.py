"""Search for the settings with the shortest training step: Optuna at flow, the best at packet.

Optuna's tree-structured Parzen estimator (Bergstra et al., NIPS 2011) proposes points of a `Space`;
each point is simulated once at fidelity flow. The best few run again at fidelity packet, which
decides between them. A journal keeps all trials, so that a later search of the same file continues.

A `Point` has a value for each axis that its algorithm uses. `scenario_of` turns it into a scenario
of the simulator, `environment_of` into environment variables of a job.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from sim.answer.scenario import Settings, fusion_bytes, run_scenario
from sim.cluster.placement import choose_gpus, common_group
from sim.schema.input_errors import Problem, TopologyError
from sim.schema.nccl_defaults import uses_sockets
from sim.schema.scenario_keys import Light

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from sim.answer.progress import Advance
    from sim.cluster.cluster import Cluster
    from sim.schema.scenario_keys import Scenario

    Value = str | int | float
    Point = Mapping[str, Value]

MIB = 1 << 20
NCCL, RING, TWO_D, TOPK, TWO_D_TOPK = "nccl", "ring", "2d", "topk", "2d-topk"
SPARSE = (TOPK, TWO_D_TOPK)
GROUPED = (TWO_D, TWO_D_TOPK)


@dataclass(frozen=True)
class Space:
    """Values of each axis, the default first."""

    algorithm: tuple[str, ...]
    """nccl, or LightCC's ring, 2d, topk and 2d-topk."""
    intra_size: tuple[int, ...]
    """LIGHT_INTRA_SIZE, for 2d and 2d-topk."""
    fusion: tuple[int, ...]
    """Bytes of a bucket."""
    ratio: tuple[float, ...] = (0.01,)
    """LIGHT_TOPK_RATIO. Smaller is always faster; the effect on convergence is not simulated."""
    threshold: tuple[int, ...] = (MIB, 64 << 10, 16 * MIB)
    """LIGHT_TOPK_THRESHOLD."""
    fp16: tuple[int, ...] = (0, 1)
    """LIGHT_TOPK_FP16."""
    channels: tuple[int, ...] = (1, 2, 4, 8)
    """NCCL's; LightCC has one connection to each peer."""
    paths: tuple[int, ...] = (1, 2, 4)
    """HARP_PATHS."""
    engines: tuple[int, ...] = (1, 2)
    """HARP_ENGINES."""

    @classmethod
    def of(cls, cluster: Cluster, scenario: Scenario, *, lossless: bool = False,
           ratios: tuple[float, ...] = (0.01,)) -> Space:
        """Space for a cluster: groups that divide its ranks, HARP's settings on HARP's stack."""
        ranks = cluster.gpus
        host = common_group(cluster, choose_gpus(cluster, range(cluster.hosts), ranks,
                                                 affinity=scenario.affinity))
        sizes = sorted((size for size in range(2, ranks) if ranks % size == 0),
                       key=lambda size: (size != host, size))
        default = fusion_bytes(cluster.topology, scenario, cluster.topology.workload, ranks)
        algorithms = [NCCL, RING] + ([TWO_D] if sizes else [])
        if not lossless:
            algorithms += [TOPK] + ([TWO_D_TOPK] if sizes else [])
        harp = not uses_sockets(scenario.stack, cluster.topology.stacks)
        return cls(tuple(algorithms), tuple(sizes[:6]) or (1,), tuple(dict.fromkeys(
            [default, *(MIB * size for size in (1, 4, 16, 25, 64, 128))])), ratios,
            paths=(1, 2, 4) if harp else (1,), engines=(1, 2) if harp else (1,))

    def values(self, axis: str) -> tuple[Value, ...]:
        """Give the values of an axis."""
        found: tuple[Value, ...] = getattr(self, axis)
        return found

    def points(self) -> Iterator[Point]:
        """All points of the grid."""
        for algorithm in self.algorithm:
            axes = axes_of(algorithm)
            for chosen in product(*(self.values(axis) for axis in axes)):
                yield {"algorithm": algorithm, **dict(zip(axes, chosen, strict=True))}

    def default(self) -> Point:
        """Give the point of all defaults."""
        return self.point({})

    def point(self, chosen: Point) -> Point:
        """Complete a choice by defaults, and drop the axes that its algorithm does not use."""
        algorithm = str(chosen.get("algorithm", self.algorithm[0]))
        return {"algorithm": algorithm, **{axis: chosen.get(axis, self.values(axis)[0])
                                           for axis in axes_of(algorithm)}}


def axes_of(algorithm: str) -> tuple[str, ...]:
    """Axes that an algorithm uses."""
    axes = ["fusion", "paths", "engines"]
    if algorithm == NCCL:
        axes.append("channels")
    if algorithm in GROUPED:
        axes.append("intra_size")
    if algorithm in SPARSE:
        axes += ["ratio", "threshold", "fp16"]
    return tuple(axes)


def scenario_of(scenario: Scenario, point: Point, fidelity: str) -> tuple[Scenario, Settings]:
    """Scenario and settings of a point for the simulator."""
    algorithm = str(point["algorithm"])
    light = {name: value for name, value in environment_of(point, "").items()
             if name.startswith("LIGHT_")}
    numbers = {name: float(value) if name == "LIGHT_TOPK_RATIO" else int(value)
               for name, value in light.items()}
    changed = scenario.model_copy(update={
        "allreduce": "nccl" if algorithm == NCCL else "light",
        "light": Light.model_validate(numbers) if light else None,
        "fusion": scenario.fusion.model_copy(update={"threshold": point["fusion"]}),
        "channels": point.get("channels", 1), "sockets": point["paths"]})
    return changed, Settings({f"{scenario.stack}.threads": float(point["engines"])},
                             fidelity=fidelity)


def environment_of(point: Point, rule: str) -> dict[str, str]:
    """Environment variables of a point; DDP's bucket size is an argument, not a variable.

    Args:
        point: the chosen settings.
        rule: rule of gradient fusion, see `sim.answer.scenario.fusion_rule`.
    """
    algorithm = str(point["algorithm"])
    found: dict[str, Value] = {"HARP_PATHS": point["paths"], "HARP_ENGINES": point["engines"]}
    if rule == "cycle":
        found["HOROVOD_FUSION_THRESHOLD"] = point["fusion"]
    if algorithm == NCCL:
        found |= {"NCCL_MIN_NCHANNELS": point["channels"], "NCCL_MAX_NCHANNELS": point["channels"]}
    else:
        found |= {"LIGHT_2D_ALLREDUCE": int(algorithm in GROUPED),
                  "LIGHT_TOPK_ALLREDUCE": int(algorithm in SPARSE)}
    if algorithm in GROUPED:
        found["LIGHT_INTRA_SIZE"] = point["intra_size"]
    if algorithm in SPARSE:
        found |= {"LIGHT_TOPK_RATIO": point["ratio"], "LIGHT_TOPK_THRESHOLD": point["threshold"],
                  "LIGHT_TOPK_FP16": point["fp16"]}
    return {name: str(value) for name, value in found.items()}


CHECKED = 3
"""Number of the best points at flow that run again at packet."""
ALIKE = 1.002
"""Ratio of step times within which a setting stays at its default."""
MOST_REPEATS = 100
"""Proposals in a row that were already known, after which the search ends."""
START_POINTS = 10
"""Points that are drawn at random before the estimator proposes any (Optuna's default)."""


@dataclass(frozen=True)
class Found:
    """Result of a search: the best point, with its step time."""

    best: Point
    best_s: float
    default_s: float
    """Step time of the default point."""
    tried: int
    of: int
    before: int
    """Trials that the journal already had."""
    checked: tuple[tuple[Point, float, float | None], ...] = ()
    """The best points at flow, with their step times there and, if it can carry them, at packet."""
    brings: tuple[tuple[str, Any, Any, float], ...] = field(default=())
    """For each axis the chosen value, its default, and the step time with that default."""
    note: str = ""


class Trials:
    """Steps by point, simulated once each."""

    def __init__(self, cluster: Cluster, scenario: Scenario) -> None:
        self._cluster, self._scenario = cluster, scenario
        self.known: dict[tuple[tuple[str, Any], ...], float] = {}

    def step_s(self, point: Point, fidelity: str = "flow") -> float:
        """Give the seconds of a step, of the slowest job."""
        key = tuple(sorted(point.items()))
        if fidelity == "flow" and key in self.known:
            return self.known[key]
        scenario, settings = scenario_of(self._scenario, point, fidelity)
        found = max(result.step_s for result in run_scenario(
            self._cluster, scenario, self._cluster.gpus, settings))
        if fidelity == "flow":
            self.known[key] = found
        return found

    def best_so_far(self) -> str:
        """State of the search, for the progress bar."""
        best = f", best {min(self.known.values()) * 1e3:.4g} ms" if self.known else ""
        return f"{len(self.known)} tried{best}"


def search(cluster: Cluster, scenario: Scenario, space: Space, journal: Path, advance: Advance,
           *, budget_s: float = 60.0, most: int | None = None, checked: int = CHECKED) -> Found:
    """Search until the budget is spent, all points are tried, or nothing new is proposed.

    Args:
        cluster: the built topology.
        scenario: gives stack, framework and faults.
        space: the points.
        journal: file of trials, which a later search continues.
        advance: moves a bar of as many seconds as the budget.
        budget_s: seconds for the search at flow.
        most: most new trials, for searches that must not depend on the clock.
        checked: number of points that run again at packet.
    """
    trials, began_s = Trials(cluster, scenario), time.monotonic()
    trials.step_s(space.default())  # errors come before anything is written
    study = _study(cluster, scenario, space, journal)
    before = _take_back(study, trials, space)
    for start in ({}, *({"algorithm": name} for name in space.algorithm)):
        study.enqueue_trial(dict(space.point(start)), skip_if_exists=True)
    of, repeats, made = sum(1 for _ in space.points()), 0, 0
    shown_s = 0.0
    while len(trials.known) < of and repeats < MOST_REPEATS and (most is None or made < most):
        passed_s = time.monotonic() - began_s
        if passed_s > budget_s and len(trials.known) > len(space.algorithm):
            break
        trial = study.ask()
        point = _suggest(trial, space)
        advance(min(passed_s, budget_s) - shown_s, trials.best_so_far())
        shown_s = min(passed_s, budget_s)
        known = len(trials.known)
        study.tell(trial, trials.step_s(point))
        made += 1
        repeats = 0 if len(trials.known) > known else repeats + 1
    return _conclude(trials, space, checked, (of, before), advance)


def require_optuna() -> Any:
    """Import Optuna; raises TopologyError if it is not installed."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise TopologyError("--settings", Problem(
            "needs Optuna, which is not installed; run `pip install optuna`")) from error
    return optuna


def _study(cluster: Cluster, scenario: Scenario, space: Space, journal: Path) -> Any:
    from harp.cli.io import make_folder

    optuna = require_optuna()
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    key = repr((cluster.topology.sha256, cluster.topology.changes, scenario.name, space))
    make_folder(journal.parent)
    try:
        _drop_torn_line(journal)
        return optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(journal))), load_if_exists=True,
            study_name=hashlib.sha256(key.encode()).hexdigest()[:16],
            sampler=optuna.samplers.TPESampler(seed=cluster.topology.seed,
                                               n_startup_trials=START_POINTS))
    except (ValueError, KeyError, TypeError) as error:  # which one depends on the damaged line
        raise TopologyError("--settings", Problem(
            f"{journal} is no journal of trials", allowed="one of an earlier search, or no file"
        )) from error


def _drop_torn_line(journal: Path) -> None:
    """Drop the incomplete last line of a killed search: nothing after it could be read.

    Raises ValueError for a file that does not begin with a JSON object, as journals do.
    """
    written = journal.read_bytes() if journal.exists() else b""
    if not written:
        return
    if not written.startswith(b"{"):
        raise ValueError(journal)
    with journal.open("r+b") as file:
        file.truncate(written.rfind(b"\n") + 1)


def _take_back(study: Any, trials: Trials, space: Space) -> int:
    """Load the trials of an earlier search; their number."""
    done = [trial for trial in study.trials if trial.value is not None]
    for trial in done:
        trials.known[tuple(sorted(space.point(trial.params).items()))] = float(trial.value)
    return len(done)


def _suggest(trial: Any, space: Space) -> Point:
    """Let Optuna choose the algorithm and the axes that it uses."""
    algorithm = trial.suggest_categorical("algorithm", space.algorithm)
    wanted = space.point({"algorithm": algorithm})
    return {axis: algorithm if axis == "algorithm"
            else trial.suggest_categorical(axis, space.values(axis)) for axis in wanted}


def _conclude(trials: Trials, space: Space, checked: int, counts: tuple[int, int],
              advance: Advance) -> Found:
    rows: list[tuple[Point, float, float | None]] = []
    note = ""
    best_few = _best_points(trials, space, max(checked, 1))
    for number, point in enumerate(best_few, 1):
        advance(0, f"{number} of {len(best_few)} at packet")
        packet_s = None
        try:
            packet_s = trials.step_s(point, "packet") if checked and not note else None
        except TopologyError as error:
            note = f"Fidelity packet cannot carry this file, so flow alone decides: {error}."
        rows.append((point, trials.step_s(point), packet_s))
    sure = [(packet_s, number) for number, (_, _, packet_s) in enumerate(rows)
            if packet_s is not None]
    best = rows[min(sure)[1] if sure else 0][0]
    return Found(best, trials.step_s(best), trials.step_s(space.default()), len(trials.known),
                 counts[0], counts[1], tuple(rows), _brings(trials, space, best), note)


def _best_points(trials: Trials, space: Space, wanted: int) -> list[Point]:
    """The best points at flow, with defaults where these are as good."""
    found: list[Point] = []
    for key in sorted(trials.known, key=lambda key: trials.known[key]):
        point = _with_defaults(trials, space, dict(key))
        if point not in found:
            found.append(point)
        if len(found) == wanted:
            break
    return sorted(found, key=trials.step_s)


def _with_defaults(trials: Trials, space: Space, point: Point) -> Point:
    """Reset each axis that does not shorten the step."""
    most_s = ALIKE * trials.step_s(point)
    for axis in point:
        plainer = space.point({**point, axis: space.values(axis)[0]})
        if axis != "algorithm" and trials.step_s(plainer) <= most_s:
            point = plainer
    return point


def _brings(trials: Trials, space: Space,
            best: Point) -> tuple[tuple[str, Any, Any, float], ...]:
    """Step time with each single axis reset to its default."""
    default = {axis: space.values(axis)[0] for axis in best}
    return tuple((axis, value, default[axis], trials.step_s(
        space.point({**best, axis: default[axis]}))) for axis, value in best.items()
        if value != default[axis])
