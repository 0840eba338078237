"""Answer what a topology file asks: simulate its rows, and say how far they can be trusted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sim.answer.clock import Recorder
from sim.records.results import Origin, Report, UsedParameter, Warned

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sim.cluster.cluster import Cluster
    from sim.network.interface import Capture
    from sim.records.results import ScenarioResult
    from sim.schema.model import Topology
    from sim.schema.scenario_keys import Scenario

    Row = tuple[Scenario, int]
    Answers = list[list[ScenarioResult]]


def answer(cluster: Cluster, scenarios: Iterable[Scenario], *, record: bool = False,
           draws: int | None = None, why: bool = False, search_idle: bool = False,
           quiet: bool = True, fidelity: str = "flow",
           capture: Capture | None = None) -> Report:
    """Simulate scenarios at all their numbers of GPUs, with intervals.

    Args:
        cluster: the built topology.
        scenarios: those to run.
        record: keep utilisation over time, for plots and traces.
        draws: choices of what is unknown for the intervals; None takes as many as time allows.
        why: tell for each row what its interval is due to.
        search_idle: look for keys of the file that change no row, where all its scenarios run.
        quiet: no progress bar.
        fidelity: what carries the bytes. Beside flow there is no search for idle keys, which takes
            many runs, and at packet intervals only where they are asked for; rows that a fidelity
            cannot carry are left out.
        capture: what to write into a file, of the one row that is asked for.
    """
    from sim.answer.progress import progress
    from sim.answer.scenario import Run, Settings
    from sim.answer.wall_time import check_wall_time
    from sim.schema.errors import TopologyError

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
            clock = Recorder()
            try:
                found.append(Run(cluster, scenario, gpus, settings, clock).go())
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
    """Keys that change no row, or a note that they were not looked for.

    Neither where not all scenarios of the file were run.
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
        return (), [f"Keys without effect were not looked for: {much}."]
    elsewhere = cluster.topology.is_elsewhere  # a note says what becomes of `expect` then
    return tuple(Warned(error.key, error.line, str(error)) for error in idle_keys(cluster, done)
                 if not (elsewhere and error.key.startswith("expect"))), []


def _notes(topology: Topology, fidelity: str) -> list[str]:
    from sim.schema.model import LAB_TOO, packet_keys

    notes = [f"Set on the command line: {change}" for change in topology.changes]
    if topology.is_elsewhere:
        notes.append("This is not the cluster and workload that the figures under expect come "
                     f"from (fitted_on: {topology.fitted_on}; here {topology.fingerprint}): no row "
                     "is held against them, and what was fitted there is only assumed here.")
    keys = [] if fidelity == "packet" else packet_keys(topology.plain)
    if LAB_TOO in keys:
        keys.remove(LAB_TOO)
        if fidelity != "lab":
            notes.append(f"Only --fidelity packet and lab read {LAB_TOO}.")
    if keys:
        notes.append(f"Only --fidelity packet reads {', '.join(keys)}."
                     + (" Caps that police make traffic wait here." if "vpc.police" in keys
                        else ""))
    return notes


def _with_intervals(cluster: Cluster, rows: Sequence[Row], found: Answers, draws: int | None,
                    *, why: bool, fidelity: str = "flow") -> tuple[Answers, list[str]]:
    """Add intervals, and causes if asked, to the rows that no parameter was fitted to.

    What is fitted is fitted at flow, whatever the fidelity of the rows.
    """
    from sim.answer.fit import fits_hold
    from sim.answer.uncertainty import FEWEST_DRAWS, affordable_draws, causes, spread

    known = [row for several in found for row in several] if fidelity == "flow" else []
    refit = fits_hold(cluster, known)
    fitted = {(e.scenario, e.gpus) for e in cluster.topology.expect if e.kind == "fitted" and refit}
    open_ = [i for i, (scenario, gpus) in enumerate(rows)
             if (scenario.name, gpus) not in fitted]
    if draws is None:
        draws = affordable_draws(_effort_of_draw(cluster, rows, found, open_, refit=refit))
        if not draws and open_:
            return found, ["No intervals: simulating all rows again a few times takes long; "
                           f"--draws {FEWEST_DRAWS} asks for it."]
    if not draws or not open_:
        return found, []
    chosen = [rows[i] for i in open_]
    made = dict(zip(open_, spread(cluster, chosen, draws, refit=refit, fidelity=fidelity),
                    strict=True))
    due = (dict(zip(open_, causes(cluster, chosen, refit=refit, fidelity=fidelity), strict=True))
           if why else {})
    return [[replace(result, interval=interval, causes=reasons) for result, interval, reasons
             in zip(several, made[i], due.get(i) or [()] * len(several), strict=True)]
            if made.get(i) else several for i, several in enumerate(found)], []


def _effort_of_draw(cluster: Cluster, rows: Sequence[Row], found: Answers, open_: Sequence[int],
                    *, refit: bool) -> int:
    """Events of one draw: of the rows that are open, and of those that it fits anew."""
    from sim.answer.uncertainty import FIT_RUNS

    fitted = {(expect.scenario, expect.gpus) for expect in cluster.topology.expect
              if expect.fits is not None and refit}
    again = [i for i, (scenario, gpus) in enumerate(rows) if (scenario.name, gpus) in fitted]
    return (sum(found[i][0].effort for i in open_)
            + FIT_RUNS * sum(found[i][0].effort for i in again))
