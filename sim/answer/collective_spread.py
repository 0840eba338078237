"""Intervals of collectives, and their causes: P10, P50 and P90 of each row's time over draws.

Each draw chooses, as in training (`sim.answer.uncertainty`), a value of every uncertain figure of
the host stack, the unknown properties of connections, and other source ports. Figures that the file
fits to its rows of training are fitted again in each draw, if the stack has them and the fits hold.
Frameworks take no part in a collective. A margin for all other differences between clusters moves
P10, P50 and P90 (`sim.answer.margins`), and the answer always lies between P10 and P90.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from sim.answer.collective_bench import measure
from sim.answer.fit import fit, fit_slopes, fits_hold
from sim.answer.hidden import every_hidden, uncover
from sim.answer.margins import COLLECTIVES
from sim.answer.parallel import map_shared
from sim.answer.scenario import Settings
from sim.answer.uncertainty import (
    CONNECTIONS,
    FEWEST_DRAWS,
    FIT_ACCURACY,
    PORT_DRAWS,
    PORTS,
    SAME,
    TAIL,
    Draw,
    affordable_draws,
    choose_draws,
    unknowns,
)
from sim.records.results import Cause, TimeInterval
from sim.schema.input_errors import TopologyError
from sim.schema.parameters import StackSet, givers, shipped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harp.collectives.tuning import Tuning
    from sim.answer.uncertainty import Unknown
    from sim.cluster.cluster import Cluster
    from sim.records.results import CollectiveReport, CollectiveRow
    from sim.schema.scenario_keys import Scenario


@dataclass(frozen=True)
class Question:
    """A collective by several algorithms at several sizes, over one stack."""

    cluster: Cluster
    collective: str
    sizes: Sequence[int]
    scenario: Scenario
    stack: str
    fidelity: str = "flow"
    tuning: Tuning | None = None

    @cached_property
    def own(self) -> Cluster:
        """The cluster, as if its file had this scenario alone, over this stack."""
        found = copy(self.cluster)
        found.topology = self.cluster.topology.model_copy(update={
            "scenarios": (self.scenario.model_copy(update={"stack": self.stack}),)})
        return found

    def ask(self, draw: Draw, *, explain: bool = False) -> CollectiveReport:
        """Time every row."""
        cluster = uncover(self.own, draw.hidden)
        return measure(cluster, self.collective, self.sizes,
                       settings=Settings(draw.figures, draw.seed, fidelity=self.fidelity),
                       tuning=self.tuning, explain=explain)

    @property
    def unknowns(self) -> list[Unknown]:
        """The figures that decide an interval."""
        frameworks = {*shipped("frameworks"), *self.cluster.topology.frameworks}
        return [unknown for unknown in unknowns(self.own.topology, fitted=self.refits,
                                            alone=True)
                if unknown.name.rpartition(".")[0] not in frameworks]

    @property
    def refits(self) -> bool:
        """Whether the file fits figures of the stack to its rows, and the fits hold."""
        topology = self.cluster.topology
        own = {f"{of}.{parameter}" for parameter, sets in givers(
            self.stack, topology.stacks, "stacks", StackSet).items() for of in sets}
        fitted = {expect.fits for expect in topology.expect if expect.fits}
        return not own.isdisjoint(fitted) and fits_hold(self.cluster)


@dataclass(frozen=True)
class _Task:
    question: Question
    refit: bool
    slopes: Mapping[str, float]


def answer(question: Question, draws: int | None = None, *, why: bool = False,
           explain: bool = False) -> CollectiveReport:
    """Time the collective, with the interval of each row.

    Args:
        question: what is asked.
        draws: of the uncertain figures; None: as many as time allows at fidelity flow, else none.
        why: rank what each interval is due to.
        explain: say what each row's time is due to.
    """
    report = question.ask(Draw({}), explain=explain)
    note = ""
    if draws is None:
        draws = affordable_draws(report.effort) if question.fidelity == "flow" else 0
        if not draws:
            note = ("No intervals: simulating all rows several times would take long; --draws "
                    f"{FEWEST_DRAWS} does it.")
    if not (draws or why):
        return replace(report, notes=(note,) if note else ())
    open_, refit = question.unknowns, question.refits
    task = _Task(question, refit, fit_slopes(question.cluster) if refit else {})
    rows = report.rows
    if draws:
        chosen = choose_draws(question.own.topology, draws, fitted=refit, alone=True)
        rows = _with_intervals(rows, [times for times in map_shared(_times, task, chosen)
                                      if times is not None])
    if why:
        rows = _with_causes(rows, task, open_)
    if draws:
        note = (f"P10, P50, P90: busbw over {draws} draws of the uncertain parameters and of "
                "source ports, and a margin for what else clusters differ by"
                + ("; each draw fits the fitted parameters again" if refit else "")
                + ". P50 is the prediction; other columns are at the parameters' values.")
    return replace(report, rows=rows, notes=(note,) if note else ())


def _times(task: _Task, draw: Draw) -> list[float] | None:
    """Time of each row in seconds, or None if a fit finds no value."""
    try:
        if task.refit:
            settings = Settings(draw.figures, draw.seed, name_limits=False)
            fitted = fit(task.question.cluster, settings, accuracy=FIT_ACCURACY,
                         slopes=task.slopes)
            draw = replace(draw, figures={**draw.figures, **fitted})
        return [row.time_s for row in task.question.ask(draw).rows]
    except TopologyError:
        return None


def _with_intervals(rows: Sequence[CollectiveRow],
                    times: Sequence[Sequence[float]]) -> tuple[CollectiveRow, ...]:
    if not times:
        return tuple(rows)
    found = []
    for row, drawn in zip(rows, np.array(times).T, strict=True):
        low, middle, high = np.quantile(drawn, (TAIL, 0.5, 1.0 - TAIL)).tolist()
        slow, expected, fast = COLLECTIVES.move(1 / high, 1 / middle, 1 / low)
        interval = TimeInterval(min(1 / fast, row.time_s), 1 / expected,
                                max(1 / slow, row.time_s), len(drawn))
        found.append(row if np.ptp(drawn) <= SAME * drawn.max() else
                     replace(row, interval=interval))
    return tuple(found)


def _with_causes(rows: Sequence[CollectiveRow], task: _Task,
                 open_: Sequence[Unknown]) -> tuple[CollectiveRow, ...]:
    ends = [(unknown.name, unknown.quantile(TAIL), unknown.quantile(1.0 - TAIL))
            for unknown in open_]
    seed = task.question.cluster.topology.seed
    chosen = [Draw({name: value}) for name, low, high in ends for value in (low, high)]
    chosen += [Draw({}, (seed + number) % 2**32) for number in range(1, PORT_DRAWS + 1)]
    chosen += [Draw({}, hidden=hidden) for hidden in every_hidden(task.question.own.topology)]
    times = map_shared(_times, task, chosen)
    return tuple(replace(row, causes=_causes(
        ends, [None if each is None else row.busbw * row.time_s / each[number] for each in times]))
        for number, row in enumerate(rows))


def _causes(ends: Sequence[tuple[str, float, float]],
            rates: Sequence[float | None]) -> tuple[Cause, ...]:
    """Causes of one row, from its busbw at both ends of each figure and with other ports."""
    found = []
    for number, (name, least, most) in enumerate(ends):
        low, high = rates[2 * number: 2 * number + 2]
        if low is not None and high is not None:
            found.append(Cause(name, least, most, low, high))
    first, last = 2 * len(ends), 2 * len(ends) + PORT_DRAWS
    for label, some in ((PORTS, rates[first:last]), (CONNECTIONS, rates[last:])):
        known = [rate for rate in some if rate is not None]
        if known:
            found.append(Cause(label, None, None, min(known), max(known)))
    moved = [cause for cause in found if cause.width > SAME * max(cause.at_low, cause.at_high)]
    return tuple(sorted(moved, key=lambda cause: -cause.width))
