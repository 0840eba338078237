"""Answers to a topology file: simulate its rows, with intervals, warnings and notes.

Before a run at fidelity `lab`, `check_wall_time` predicts its duration by fidelity `flow`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from sim.answer.clock import Recorder
from sim.answer.progress import progress
from sim.answer.scenario import Settings, make_run, run_scenario
from sim.records.results import Origin, Report, UsedParameter, Warned
from sim.schema.input_errors import Problem, TopologyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sim.cluster.cluster import Cluster
    from sim.network.interface import Capture
    from sim.records.results import ScenarioResult
    from sim.schema.scenario_keys import Scenario
    from sim.schema.topology_model import Topology

    Row = tuple[Scenario, int]
    Answers = list[list[ScenarioResult]]

MOST_S = 1800.0
"""Largest wall time of all rows of a laboratory run, in seconds."""


def check_wall_time(cluster: Cluster, rows: Sequence[tuple[Scenario, int]]) -> None:
    """Raise TopologyError where the laboratory would take longer than `MOST_S`."""
    topology = cluster.topology
    step_s = sum(_step_s(cluster, scenario, gpus) for scenario, gpus in rows)
    if step_s / topology.lab.scale > MOST_S:
        raise topology.error(Problem(
            f"the laboratory would take {step_s / topology.lab.scale / 60:,.0f} minutes for these "
            f"{len(rows)} rows at a scale of {topology.lab.scale:g}", path=("lab", "scale"),
            allowed=f"at least {step_s / MOST_S:.1g}, or fewer rows (--scenario)"))


def most_events(topology: Topology) -> float | None:
    """Events after which a row is given up; traces end by themselves. None: the usual number."""
    return None if topology.workload.trace is None else math.inf


def _step_s(cluster: Cluster, scenario: Scenario, gpus: int) -> float:
    """Longest step among the jobs, which run side by side."""
    try:
        return max(result.step_s for result in run_scenario(cluster, scenario, gpus))
    except TopologyError:
        return 0.0  # running the row reports the error


def answer(cluster: Cluster, scenarios: Iterable[Scenario], *, record: bool = False,
           draws: int | None = None, why: bool = False, search_idle: bool = False,
           quiet: bool = True, fidelity: str = "flow",
           capture: Capture | None = None) -> Report:
    """Simulate scenarios at all their numbers of GPUs, with intervals.

    Args:
        cluster: the built topology.
        scenarios: those to run.
        record: keep utilisation over time, for plots and traces.
        draws: draws of the uncertain parameters for the intervals; None: as many as time allows.
        why: rank the causes of each row's interval.
        search_idle: look for keys of the file that change no row, if all its scenarios run.
        quiet: no progress bar.
        fidelity: what carries the bytes. Only flow searches for idle keys, which takes many runs;
            other fidelities give intervals only on request, and leave out rows that they cannot
            carry.
        capture: the link to capture into a file, for a run of one row.
    """
    topology = cluster.topology
    settings = Settings(record_links=record, fidelity=fidelity, capture=capture)
    times: list[list[float]] = []
    rows = [(scenario, gpus) for scenario in scenarios for gpus in topology.gpu_counts(scenario)]
    found: Answers = []
    refused: list[TopologyError] = []
    left_out: list[str] = []
    answered: list[Row] = []
    if fidelity == "lab":
        check_wall_time(cluster, rows)
    with progress(len(rows), topology.name, quiet=quiet) as advance:
        for scenario, gpus in rows:
            advance(0, f"{scenario.name}, {gpus} GPUs")
            clock = Recorder(most_events(topology))
            try:
                found.append(make_run(cluster, scenario, gpus, settings, clock).go())
                answered.append((scenario, gpus))
            except TopologyError as error:
                if fidelity == "flow":
                    raise
                refused.append(error)
                left_out.append(f"Left out: {scenario.name}, {gpus} GPUs. {error}.")
            times.append(clock.times)
            advance()
    if refused and not found:
        raise refused[0]
    idle: tuple[Warned, ...] = ()
    notes = [f"Fidelity {fidelity}.", *left_out]
    if fidelity == "flow":
        idle, unsearched = _idle(cluster, rows, times, found) if search_idle else ((), [])
        found, notes = _with_intervals(cluster, rows, found, draws, why=why)
        notes += unsearched
    elif draws or why:
        found, more = _with_intervals(cluster, answered, found, draws, why=why, fidelity=fidelity)
        notes += more
    results = tuple(result for several in found for result in several)
    notes = [*_notes(topology, fidelity), *notes]
    return Report(topology.name, topology.seed, results, tuple(notes),
                  origin_of(topology), idle)


def origin_of(topology: Topology, stack: str | None = None) -> Origin:
    """Hash of the file, what was changed in it, and every parameter of it and of ``stack``."""
    from sim.answer.fit import used_sets
    from sim.schema.parameters import Parameter

    used = [UsedParameter(f"{owner.name}.{name}", figure.value, *figure.interval,
                          figure.confidence, figure.source)
            for owner in used_sets(topology, stack) for name, figure in owner
            if isinstance(figure, Parameter)]
    return Origin(topology.sha256, topology.changes, tuple(used))


def _idle(cluster: Cluster, rows: Sequence[Row], times: Sequence[list[float]],
          found: Answers) -> tuple[tuple[Warned, ...], list[str]]:
    """Keys that change no row, or a note that no search was made.

    Neither if only some scenarios of the file were run.
    """
    from sim.answer.idle_keys import idle_keys, too_much_to_search

    scenarios = cluster.topology.scenarios
    if {scenario.name for scenario, _ in rows} != {scenario.name for scenario in scenarios}:
        return (), []
    numbers = {scenario.name: number for number, scenario in enumerate(scenarios)}
    done = {(numbers[scenario.name], gpus): (when, results) for (scenario, gpus), when, results
            in zip(rows, times, found, strict=True)}
    much = too_much_to_search(cluster, done)
    if much is not None:
        return (), [f"No search for keys without effect: {much}."]
    elsewhere = cluster.topology.is_elsewhere  # then a note says that `expect` is ignored
    return tuple(Warned(error.key, error.line, str(error)) for error in idle_keys(cluster, done)
                 if not (elsewhere and error.key.startswith("expect"))), []


def _notes(topology: Topology, fidelity: str) -> list[str]:
    from sim.schema.topology_model import LAB_TOO, packet_keys

    notes = [f"Set on the command line: {change}" for change in topology.changes]
    notes += _own_models(topology)
    if topology.is_elsewhere:
        notes.append("The figures under expect come from another cluster or workload (fitted_on: "
                     f"{topology.fitted_on}; here {topology.fingerprint}): no row is compared with "
                     "them, and parameters fitted there are assumptions here.")
    keys = [] if fidelity in ("packet", "steady") else packet_keys(topology.plain)
    if LAB_TOO in keys:
        keys.remove(LAB_TOO)
        if fidelity != "lab":
            notes.append(f"Only --fidelity packet and lab read {LAB_TOO}.")
    if keys:
        notes.append(f"Only --fidelity packet reads {', '.join(keys)}."
                     + (" Here policed caps delay traffic instead of dropping it."
                        if "vpc.police" in keys else ""))
    return notes


def _own_models(topology: Topology) -> list[str]:
    """Sizes of models that the file brings itself, to be held against what their authors say."""
    workloads = dict.fromkeys(workload for scenario in topology.scenarios
                              for workload in topology.workloads_of(scenario))
    counts = dict.fromkeys(workload.network.parameters for workload in workloads
                           if workload.has_network and not isinstance(workload.model, str))
    return [f"The file's own model has {count / 1e9:,.3f} billion parameters."
            for count in counts]


def _with_intervals(cluster: Cluster, rows: Sequence[Row], found: Answers, draws: int | None,
                    *, why: bool, fidelity: str = "flow") -> tuple[Answers, list[str]]:
    """Add intervals, and causes on request, to the rows that no parameter was fitted to.

    Fits run at flow, whatever the fidelity of the rows.
    """
    from sim.answer.fit import fits_hold
    from sim.answer.uncertainty import FEWEST_DRAWS, affordable_draws, causes, settle, spread

    known = [row for several in found for row in several] if fidelity == "flow" else []
    refit = fits_hold(cluster, known)
    fitted = {(e.scenario, e.gpus) for e in cluster.topology.expect if e.kind == "fitted" and refit}
    open_ = [i for i, (scenario, gpus) in enumerate(rows)
             if (scenario.name, gpus) not in fitted]
    if draws is None:
        draws = affordable_draws(_effort_of_draw(cluster, rows, found, open_, refit=refit))
        if not draws and open_:
            return found, ["No intervals: simulating all rows several times would take long; "
                           f"--draws {FEWEST_DRAWS} does it."]
    if not draws or not open_:
        return found, []
    chosen = [rows[i] for i in open_]
    made = dict(zip(open_, spread(cluster, chosen, draws, refit=refit, fidelity=fidelity),
                    strict=True))
    due = (dict(zip(open_, causes(cluster, chosen, refit=refit, fidelity=fidelity), strict=True))
           if why else {})
    return [[replace(result, causes=reasons, interval=interval and settle(
                interval, result.images_per_s, result.breakdown.exposed_s))
             for result, interval, reasons
             in zip(several, made[i], due.get(i) or [()] * len(several), strict=True)]
            if made.get(i) else several for i, several in enumerate(found)], []


def _effort_of_draw(cluster: Cluster, rows: Sequence[Row], found: Answers, open_: Sequence[int],
                    *, refit: bool) -> int:
    """Events of one draw: of the uncertain rows, and of those that it fits again."""
    from sim.answer.uncertainty import FIT_RUNS

    fitted = {(expect.scenario, expect.gpus) for expect in cluster.topology.expect
              if expect.fits is not None and refit}
    again = [i for i, (scenario, gpus) in enumerate(rows) if (scenario.name, gpus) in fitted]
    return (sum(found[i][0].effort for i in open_)
            + FIT_RUNS * sum(found[i][0].effort for i in again))
