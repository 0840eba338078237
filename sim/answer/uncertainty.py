"""What parameters known only within bounds leave open: P10, P50 and P90 of every row, and why.

Every parameter of the host stacks and frameworks in use that has an interval is drawn from it
(`sim.answer.draws`), all of them at once, and with each draw the flows get other source ports, so
that ECMP spreads them otherwise. A draw has one value of a parameter for all rows: rows stay
comparable.

A published throughput does not identify everything. Where the file's fitted rows come out as
published (`sim.answer.fit.fits_hold`), the parameters fitted to them are not drawn but *fitted
again* in each draw, so that every draw agrees with what was published; a draw that no fit can bring
there is left out.

`spread` answers how far rows may lie from the shipped answer, `causes` which parameter that is due
to: each goes to its own P10 and P90 while the others stay at their values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sim.answer.draws import Unknown, halton
from sim.answer.fit import fit, fit_slopes, fits_hold, used_sets
from sim.answer.parallel import map_shared
from sim.answer.scenario import Settings, run_scenario
from sim.records.results import Cause, Interval
from sim.schema.errors import TopologyError
from sim.schema.parameters import FrameworkSet, HostStack, Parameter, StackSet, givers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from sim.cluster.cluster import Cluster
    from sim.schema.model import Topology
    from sim.schema.scenario_keys import Scenario

    Row = tuple[Scenario, int]
    Answers = NDArray[np.float64]

DRAWS = 24
"""Draws where time allows; P10 and P90 then rest on the third point from either end."""
FEWEST_DRAWS = 6
"""With time for fewer than these, none are made."""
EFFORT = 900_000
"""Events that all draws together may take: some five seconds on two cores of 2020."""
FIT_RUNS = 2
"""Times that a draw simulates a row to fit a parameter to it, with `FIT_ACCURACY`."""
FIT_ACCURACY = 1e-3
"""Relative difference of a step time at which a draw's fit ends."""
SAME = 2e-3
"""Rows that no draw moves by more are certain, as far as the fits tell."""
TAIL = 0.1
"""Share of the draws below the lower, and above the upper figure."""
PORTS = "source ports"
"""What the tornado calls the choice of source ports, which ECMP hashes."""
PORT_DRAWS = 5


@dataclass(frozen=True)
class _Task:
    """What the workers share."""

    cluster: Cluster
    rows: Sequence[Row]
    refit: bool
    fidelity: str
    slopes: Mapping[str, float]


@dataclass(frozen=True)
class _Draw:
    """One choice of all that is unknown."""

    figures: Mapping[str, float]
    seed: int | None = None


def unknowns(topology: Topology, *, fitted: bool = False) -> list[Unknown]:
    """Parameters with an interval of the sets that the scenarios use, each under its origin's name.

    Args:
        topology: the file.
        fitted: leave out those that the file's rows fit.
    """
    left_out = {expect.fits for expect in topology.expect} if fitted else set()
    found: dict[str, Unknown] = {}
    for owner in used_sets(topology):
        sources = (givers(owner.name, topology.stacks, "stacks", StackSet)
                   if isinstance(owner, HostStack) else
                   givers(owner.name, topology.frameworks, "frameworks", FrameworkSet))
        for parameter, figure in owner:
            if not isinstance(figure, Parameter):
                continue
            low, high = figure.interval
            names = [f"{of}.{parameter}" for of in sources[parameter]]
            if low < high and left_out.isdisjoint(names):
                found[names[-1]] = Unknown(names[-1], low, figure.value, high, figure.confidence)
    return list(found.values())


def affordable_draws(effort: int) -> int:
    """Draws that some seconds allow if one of them takes so many events.

    The same on every machine, so that the same file gives the same answer.
    """
    draws = min(DRAWS, EFFORT // max(effort, 1))
    return draws if draws >= FEWEST_DRAWS else 0


def spread(cluster: Cluster, rows: Sequence[Row], draws: int = DRAWS, *, refit: bool | None = None,
           workers: int | None = None, fidelity: str = "flow") -> list[list[Interval | None]]:
    """For each (scenario, gpus) and each of its jobs what is left open; None where nothing is.

    Args:
        cluster: the built topology.
        rows: scenarios and numbers of GPUs.
        draws: how many choices of all that is unknown.
        refit: fit the file's fitted parameters again in each draw; None: where its fits hold.
        workers: processes; None takes as many as there are cores.
        fidelity: what carries the bytes of the rows; fits are those of flow.
    """
    if refit is None:
        refit = fits_hold(cluster)
    open_ = unknowns(cluster.topology, fitted=refit)
    points = halton(draws, len(open_), cluster.topology.seed)
    chosen = [_Draw({unknown.name: unknown.quantile(share)
                     for unknown, share in zip(open_, point.tolist(), strict=True)},
                    (cluster.topology.seed + number) % 2**32)
              for number, point in enumerate(points, 1)]
    task = _Task(cluster, rows, refit, fidelity, fit_slopes(cluster) if refit else {})
    answers = [answer for answer in map_shared(_answers, task, chosen, workers)
               if answer is not None]
    return [[_interval(np.array([answer[row][job] for answer in answers]), refit=refit)
             for job in range(len(answers[0][row]))] if answers else []
            for row in range(len(rows))]


def causes(cluster: Cluster, rows: Sequence[Row], *, refit: bool | None = None,
           workers: int | None = None, fidelity: str = "flow") -> list[list[tuple[Cause, ...]]]:
    """For each (scenario, gpus) and job what its spread is due to, the widest first.

    Arguments as of `spread`.
    """
    if refit is None:
        refit = fits_hold(cluster)
    open_ = unknowns(cluster.topology, fitted=refit)
    chosen = [_Draw({unknown.name: unknown.quantile(share)})
              for unknown in open_ for share in (TAIL, 1.0 - TAIL)]
    chosen += [_Draw({}, (cluster.topology.seed + number) % 2**32)
               for number in range(1, PORT_DRAWS + 1)]
    task = _Task(cluster, rows, refit, fidelity, fit_slopes(cluster) if refit else {})
    answers = map_shared(_answers, task, chosen, workers)
    jobs = next((answer for answer in answers if answer is not None), [])
    return [[_causes(open_, [None if answer is None else answer[row][job][0]
                             for answer in answers])
             for job in range(len(jobs[row]))] if jobs else [] for row in range(len(rows))]


def _answers(task: _Task, draw: _Draw) -> list[list[tuple[float, float]]] | None:
    """Images/s and exposed seconds of each row and job, or None where the fits find no value."""
    settings = Settings(draw.figures, seed=draw.seed, name_limits=False)
    try:
        if task.refit:
            fitted = fit(task.cluster, settings, accuracy=FIT_ACCURACY, slopes=task.slopes)
            settings = replace(settings, figures={**draw.figures, **fitted})
        settings = replace(settings, fidelity=task.fidelity)
        return [[(result.images_per_s, result.breakdown.exposed_s)
                 for result in run_scenario(task.cluster, scenario, gpus, settings)]
                for scenario, gpus in task.rows]
    except TopologyError:
        return None


def _interval(answers: Answers, *, refit: bool) -> Interval | None:
    """P10, P50 and P90 of one row, from (images/s, exposed seconds) of each draw."""
    rates, exposed_s = answers.T
    if np.ptp(rates) <= SAME * rates.max():
        return None
    low, middle, high = np.quantile(rates, (TAIL, 0.5, 1.0 - TAIL)).tolist()
    least_s, middle_s, most_s = np.quantile(exposed_s, (TAIL, 0.5, 1.0 - TAIL)).tolist()
    return Interval(low, middle, high, least_s, middle_s, most_s, len(answers), refit)


def _causes(open_: Sequence[Unknown], rates: Sequence[float | None]) -> tuple[Cause, ...]:
    """Causes of one row, from its images/s at both ends of each unknown and by some seeds."""
    found = []
    for number, unknown in enumerate(open_):
        low, high = rates[2 * number: 2 * number + 2]
        if low is not None and high is not None:
            found.append(Cause(unknown.name, unknown.quantile(TAIL), unknown.quantile(1.0 - TAIL),
                               low, high))
    ports = [rate for rate in rates[2 * len(open_):] if rate is not None]
    if ports:
        found.append(Cause(PORTS, None, None, min(ports), max(ports)))
    moved = [cause for cause in found if cause.width > SAME * max(cause.at_low, cause.at_high)]
    return tuple(sorted(moved, key=lambda cause: -cause.width))
