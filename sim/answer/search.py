"""Search the settings by which a job's steps are shortest: Optuna at flow, the best at packet.

Optuna's tree-structured Parzen estimator (Bergstra et al., NIPS 2011) proposes points of a `Space`;
each is one simulation at fidelity flow, made once however often it is proposed. The best few run
again at fidelity packet, which decides between them. All trials are kept in a journal, from which a
later search of the same file goes on.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim.answer.scenario import run_scenario
from sim.answer.settings_space import scenario_of
from sim.schema.errors import Problem, TopologyError

if TYPE_CHECKING:
    from pathlib import Path

    from sim.answer.progress import Advance
    from sim.answer.settings_space import Point, Space
    from sim.cluster.cluster import Cluster
    from sim.schema.scenario_keys import Scenario

CHECKED = 3
"""Of the best at flow, how many run again at packet."""
ALIKE = 1.002
"""A setting that makes no larger difference stays at its default."""
MOST_REPEATS = 100
"""Proposals in a row that were known already, after which a search has found what it will."""
START_POINTS = 10
"""Points that are drawn at random before the estimator proposes any (Optuna's default)."""


@dataclass(frozen=True)
class Found:
    """What a search found: the best point first, with its seconds a step."""

    best: Point
    best_s: float
    default_s: float
    """Of all defaults."""
    tried: int
    of: int
    before: int
    """Trials that were in the journal already."""
    checked: tuple[tuple[Point, float, float | None], ...] = ()
    """The best at flow, with their time there and at packet, where that can carry them."""
    brings: tuple[tuple[str, Any, Any, float], ...] = field(default=())
    """For each axis what was chosen, its default, and the step with the default in its place."""
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
        """Tell of the search, for people."""
        best = f", best {min(self.known.values()) * 1e3:.4g} ms" if self.known else ""
        return f"{len(self.known)} tried{best}"


def search(cluster: Cluster, scenario: Scenario, space: Space, journal: Path, advance: Advance,
           *, budget_s: float = 60.0, most: int | None = None, checked: int = CHECKED) -> Found:
    """Search until the budget is spent, all is tried, or nothing new is proposed.

    Args:
        cluster: where.
        scenario: whose stack, framework and faults.
        space: what may be chosen.
        journal: where trials are kept, and gone on from.
        advance: moves a bar of as many seconds as the budget.
        budget_s: of the search at flow.
        most: new trials, at most; for searches that must not depend on the clock.
        checked: how many run again at packet.
    """
    trials, began_s = Trials(cluster, scenario), time.monotonic()
    trials.step_s(space.default())  # what cannot run is told before anything is written
    study = _study(cluster, scenario, space, journal)
    before = _take_back(study, trials, space)
    for start in ({}, *({"algorithm": name} for name in space.algorithm)):
        study.enqueue_trial(dict(space.point(start)), skip_if_exists=True)
    of, repeats, made = sum(1 for _ in space.points()), 0, 0
    told_s = 0.0
    while len(trials.known) < of and repeats < MOST_REPEATS and (most is None or made < most):
        passed_s = time.monotonic() - began_s
        if passed_s > budget_s and len(trials.known) > len(space.algorithm):
            break
        trial = study.ask()
        point = _suggest(trial, space)
        advance(min(passed_s, budget_s) - told_s, trials.best_so_far())
        told_s = min(passed_s, budget_s)
        known = len(trials.known)
        study.tell(trial, trials.step_s(point))
        made += 1
        repeats = 0 if len(trials.known) > known else repeats + 1
    return _conclude(trials, space, checked, (of, before), advance)


def require_optuna() -> Any:
    """Give the module, or say what installs it."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise TopologyError("--settings", Problem(
            "needs Optuna, which is not installed; `pip install optuna` brings it")) from error
    return optuna


def _study(cluster: Cluster, scenario: Scenario, space: Space, journal: Path) -> Any:
    from harp.cli.io import make_folder

    optuna = require_optuna()
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    told = repr((cluster.topology.sha256, cluster.topology.changes, scenario.name, space))
    make_folder(journal.parent)
    try:
        _drop_torn_line(journal)
        return optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(journal))), load_if_exists=True,
            study_name=hashlib.sha256(told.encode()).hexdigest()[:16],
            sampler=optuna.samplers.TPESampler(seed=cluster.topology.seed,
                                               n_startup_trials=START_POINTS))
    except (ValueError, KeyError, TypeError) as error:  # by what line of the file happens to be
        raise TopologyError("--settings", Problem(
            f"{journal} is no journal of trials", allowed="one of an earlier search, or no file"
        )) from error


def _drop_torn_line(journal: Path) -> None:
    """Drop a line that a search which was killed wrote half of: nothing after it could be read.

    Raises ValueError for a file that does not begin with an object of JSON, as journals do.
    """
    written = journal.read_bytes() if journal.exists() else b""
    if not written:
        return
    if not written.startswith(b"{"):
        raise ValueError(journal)
    with journal.open("r+b") as file:
        file.truncate(written.rfind(b"\n") + 1)


def _take_back(study: Any, trials: Trials, space: Space) -> int:
    """Take what a search before this one has simulated."""
    done = [trial for trial in study.trials if trial.value is not None]
    for trial in done:
        trials.known[tuple(sorted(space.point(trial.params).items()))] = float(trial.value)
    return len(done)


def _suggest(trial: Any, space: Space) -> Point:
    """Let Optuna choose the algorithm, and then what that asks for."""
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
            note = f"Fidelity packet cannot carry it, so flow alone decides: {error}."
        rows.append((point, trials.step_s(point), packet_s))
    sure = [(packet_s, number) for number, (_, _, packet_s) in enumerate(rows)
            if packet_s is not None]
    best = rows[min(sure)[1] if sure else 0][0]
    return Found(best, trials.step_s(best), trials.step_s(space.default()), len(trials.known),
                 counts[0], counts[1], tuple(rows), _brings(trials, space, best), note)


def _best_points(trials: Trials, space: Space, wanted: int) -> list[Point]:
    """Give the best points at flow, each with the defaults that are as good."""
    found: list[Point] = []
    for key in sorted(trials.known, key=lambda key: trials.known[key]):
        point = _with_defaults(trials, space, dict(key))
        if point not in found:
            found.append(point)
        if len(found) == wanted:
            break
    return sorted(found, key=trials.step_s)


def _with_defaults(trials: Trials, space: Space, point: Point) -> Point:
    """Set back to its default whatever brings nothing."""
    most_s = ALIKE * trials.step_s(point)
    for axis in point:
        plainer = space.point({**point, axis: space.values(axis)[0]})
        if axis != "algorithm" and trials.step_s(plainer) <= most_s:
            point = plainer
    return point


def _brings(trials: Trials, space: Space,
            best: Point) -> tuple[tuple[str, Any, Any, float], ...]:
    """Set each axis back to its default, alone."""
    default = {axis: space.values(axis)[0] for axis in best}
    return tuple((axis, value, default[axis], trials.step_s(
        space.point({**best, axis: default[axis]}))) for axis, value in best.items()
        if value != default[axis])
