"""Uncertainty of every row: P10, P50 and P90 over draws of the parameters, and their causes.

Each draw takes a value of every parameter with an interval, of all host stacks and frameworks in
use, and other source ports of the flows, so that ECMP spreads them differently. A draw has one
value of a parameter for all rows, so that rows stay comparable.

A published throughput does not identify every parameter. If the file's fitted rows agree with their
published figures (`sim.answer.fit.fits_hold`), the parameters fitted to them are not drawn but
*fitted again* in each draw, so that every draw agrees with these figures. A draw in which no fit
succeeds is left out.

`spread` gives the interval of each row. `causes` gives each parameter's part in it: the parameter
goes to its own P10 and P90 while the others stay at their values.

NCCL's connections are no number and often unknown; a draw takes one of the possibilities
(`sim.answer.hidden`).

Draws know only what is unknown of parameters. Other differences of clusters move P10, P50 and P90
(`sim.answer.margins`), and the answer at the values always lies between P10 and P90 (`settle`). P50
is the prediction: a step takes as long as the slowest of several uncertain resources, so that its
median is longer than the step with each of them at its median.

Distributions
-------------

A value is the median of its distribution: the true value is as likely below it as above. So where
one parameter decides, the answer at the values lies in the middle of the draws' answers, even if
its interval reaches far to one side.

The shape on either side depends on how the value is known (`Parameter`). A value that is measured,
published or fitted is the best estimate; the density falls linearly to zero at the interval's ends
(a triangle on either side). Of an assumed value only the bounds are known: the density is constant
on either side. (Guide to the Expression of Uncertainty in Measurement, JCGM 100:2008, 4.3.9 for
likelier values, 4.3.7 for bounds alone.) Costs, rates and sizes are known up to a factor, so both
hold for the logarithm, unless the interval begins at 0.

The points are Halton's sequence (1960) with each digit permuted at random, so that no two
dimensions are correlated and few points fill every dimension evenly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.answer.fit import fit, fit_slopes, fits_hold, used_sets
from sim.answer.hidden import AS_TOLD, Hidden, dimensions, every_hidden, hidden_at, uncover
from sim.answer.margins import TRAINING
from sim.answer.parallel import map_shared
from sim.answer.scenario import REACHED, Settings, run_scenario
from sim.records.results import Cause, Interval
from sim.schema.input_errors import TopologyError
from sim.schema.parameters import FrameworkSet, HostStack, Parameter, StackSet, givers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from sim.cluster.cluster import Cluster
    from sim.schema.scenario_keys import Scenario
    from sim.schema.topology_model import Topology

    Row = tuple[Scenario, int]
    Answers = NDArray[np.float64]

_SMALLEST_DIGIT = 2.0 ** -40


class Unknown(NamedTuple):
    """A parameter and its interval."""

    name: str
    """Its set, a dot and the parameter, e.g. ``kernel-tcp.cost_per_byte``."""
    low: float
    value: float
    high: float
    confidence: str

    def quantile(self, share: float) -> float:
        """Value below which the parameter lies with probability ``share``."""
        if self.low > 0:
            return math.exp(_quantile(share, math.log(self.low), math.log(self.value),
                                      math.log(self.high), self.confidence))
        return _quantile(share, self.low, self.value, self.high, self.confidence)


def _quantile(share: float, low: float, value: float, high: float, confidence: str) -> float:
    reach = 2.0 * min(share, 1.0 - share)
    if confidence != "assumed":
        reach = math.sqrt(reach)
    return low + reach * (value - low) if share < 0.5 else high - reach * (high - value)


def halton(count: int, dimensions: int, seed: int) -> NDArray[np.float64]:
    """Halton points in the unit cube, float64[count, dimensions]; a larger count only adds points.

    Args:
        count: how many.
        dimensions: coordinates of each.
        seed: chooses the permutations of the digits.
    """
    points = np.zeros((count, dimensions))
    for dimension, base in enumerate(_primes(dimensions)):
        rng = np.random.default_rng([seed, base])
        digits, weight = np.arange(count), 1.0 / base
        while weight > _SMALLEST_DIGIT:
            points[:, dimension] += weight * rng.permutation(base)[digits % base]
            digits //= base
            weight /= base
    return points


def _primes(count: int) -> list[int]:
    found: list[int] = []
    number = 2
    while len(found) < count:
        if all(number % prime for prime in found):
            found.append(number)
        number += 1
    return found


DRAWS = 24
"""Draws if time allows; P10 and P90 then rest on the third point from either end."""
FEWEST_DRAWS = 6
"""Fewest draws; if time allows only fewer, none are made."""
EFFORT = 900_000
"""Events that all draws together may take: some five seconds on two cores of 2020."""
FIT_RUNS = 2
"""Simulations of a row that a draw takes to fit a parameter to it, at `FIT_ACCURACY`."""
FIT_ACCURACY = 1e-3
"""Relative difference of a step time at which a draw's fit ends."""
SAME = 2e-3
"""Relative spread of the draws up to which a row has no interval."""
TAIL = 0.1
"""Share of the draws below the lower, and above the upper figure."""
PORTS = "source ports"
"""Label of the choice of source ports, which ECMP hashes, in the tornado."""
PORT_DRAWS = 5
CONNECTIONS = "helpers and sockets"
"""Label of what is unknown of NCCL's connections, in the tornado."""


class Found(NamedTuple):
    """Result of a draw for a row."""

    images_per_s: float
    exposed_s: float
    step_s: float


@dataclass(frozen=True)
class _Task:
    """State that the workers share."""

    cluster: Cluster
    rows: Sequence[Row]
    refit: bool
    fidelity: str
    slopes: Mapping[str, float]


@dataclass(frozen=True)
class Draw:
    """One value of each uncertain parameter, and what is unknown of connections."""

    figures: Mapping[str, float]
    seed: int | None = None
    hidden: Hidden = AS_TOLD


ALONE = "launch"
"""The parameter that decides nothing but the time of a collective that runs alone."""


def unknowns(topology: Topology, *, fitted: bool = False, alone: bool = False) -> list[Unknown]:
    """Parameters with an interval of the sets that the scenarios use, named by their first set.

    Args:
        topology: the file.
        fitted: leave out those that are fitted to the file's rows.
        alone: take those, too, that decide a collective that runs alone; they come last.
    """
    left_out = {expect.fits for expect in topology.expect} if fitted else set()
    found: dict[str, Unknown] = {}
    for owner in used_sets(topology):
        sources = (givers(owner.name, topology.stacks, "stacks", StackSet)
                   if isinstance(owner, HostStack) else
                   givers(owner.name, topology.frameworks, "frameworks", FrameworkSet))
        for parameter, figure in owner:
            if not isinstance(figure, Parameter) or (parameter == ALONE and not alone):
                continue
            low, high = figure.interval
            names = [f"{of}.{parameter}" for of in sources[parameter]]
            if low < high and left_out.isdisjoint(names):
                found[names[-1]] = Unknown(names[-1], low, figure.value, high, figure.confidence)
    if topology.reached is not None:
        found[REACHED] = Unknown(REACHED, *topology.reached, "assumed")
    return sorted(found.values(), key=lambda unknown: unknown.name.endswith(f".{ALONE}"))


def choose_draws(topology: Topology, draws: int, *, fitted: bool = False,
                 alone: bool = False) -> list[Draw]:
    """Draws of all that is unknown of a file; arguments as of `unknowns`."""
    open_, first = unknowns(topology, fitted=fitted, alone=alone), dimensions(topology)
    # The least primes fill their dimensions most evenly, which a choice of few needs most.
    points = halton(draws, first + len(open_), topology.seed)
    return [Draw({unknown.name: unknown.quantile(share)
                  for unknown, share in zip(open_, point[first:], strict=True)},
                 (topology.seed + number) % 2**32, hidden_at(topology, point[:first]))
            for number, point in enumerate(points.tolist(), 1)]


def settle(interval: Interval, images_per_s: float, exposed_s: float) -> Interval:
    """Move an interval by what clusters differ by beside draws, and let it hold the answer."""
    samples = interval.samples
    rates = (interval.low_images_per_s, interval.median_images_per_s, interval.high_images_per_s)
    low, middle, high = TRAINING.move(*rates)
    most_s, middle_s, least_s = (
        max(exposed + samples * (1 / moved - 1 / rate), 0.0) for exposed, moved, rate in zip(
            (interval.high_exposed_s, interval.median_exposed_s, interval.low_exposed_s),
            (low, middle, high), rates, strict=True))
    return replace(interval, low_images_per_s=min(low, images_per_s), median_images_per_s=middle,
                   high_images_per_s=max(high, images_per_s),
                   low_exposed_s=min(least_s, middle_s, exposed_s), median_exposed_s=middle_s,
                   high_exposed_s=max(most_s, middle_s, exposed_s))


def affordable_draws(effort: int) -> int:
    """Draws that some seconds allow if each takes ``effort`` events.

    The number is the same on every machine, so that the same file gives the same answer.
    """
    draws = min(DRAWS, EFFORT // max(effort, 1))
    return draws if draws >= FEWEST_DRAWS else 0


def spread(cluster: Cluster, rows: Sequence[Row], draws: int = DRAWS, *, refit: bool | None = None,
           workers: int | None = None, fidelity: str = "flow") -> list[list[Interval | None]]:
    """Interval of each job of each (scenario, gpus); None where the draws agree.

    Args:
        cluster: the built topology.
        rows: scenarios and numbers of GPUs.
        draws: number of draws.
        refit: fit the file's fitted parameters again in each draw; None: if its fits hold.
        workers: processes; None: one for each core.
        fidelity: what carries the bytes of the rows; fits always run at flow.
    """
    if refit is None:
        refit = fits_hold(cluster)
    chosen = choose_draws(cluster.topology, draws, fitted=refit)
    task = _Task(cluster, rows, refit, fidelity, fit_slopes(cluster) if refit else {})
    answers = [answer for answer in map_shared(_answers, task, chosen, workers)
               if answer is not None]
    return [[_interval(np.array([answer[row][job] for answer in answers]), refit=refit)
             for job in range(len(answers[0][row]))] if answers else []
            for row in range(len(rows))]


def causes(cluster: Cluster, rows: Sequence[Row], *, refit: bool | None = None,
           workers: int | None = None, fidelity: str = "flow") -> list[list[tuple[Cause, ...]]]:
    """Causes of the interval of each job of each (scenario, gpus), the widest first.

    Arguments as of `spread`.
    """
    if refit is None:
        refit = fits_hold(cluster)
    open_ = unknowns(cluster.topology, fitted=refit)
    chosen = [Draw({unknown.name: unknown.quantile(share)})
              for unknown in open_ for share in (TAIL, 1.0 - TAIL)]
    chosen += [Draw({}, (cluster.topology.seed + number) % 2**32)
               for number in range(1, PORT_DRAWS + 1)]
    chosen += [Draw({}, hidden=hidden) for hidden in every_hidden(cluster.topology)]
    task = _Task(cluster, rows, refit, fidelity, fit_slopes(cluster) if refit else {})
    answers = map_shared(_answers, task, chosen, workers)
    jobs = next((answer for answer in answers if answer is not None), [])
    return [[_causes(open_, [None if answer is None else answer[row][job][0]
                             for answer in answers])
             for job in range(len(jobs[row]))] if jobs else [] for row in range(len(rows))]


def _answers(task: _Task, draw: Draw) -> list[list[Found]] | None:
    """Results of each row and job, or None if a fit finds no value."""
    settings = Settings(draw.figures, seed=draw.seed, name_limits=False)
    try:
        if task.refit:
            fitted = fit(task.cluster, settings, accuracy=FIT_ACCURACY, slopes=task.slopes)
            settings = replace(settings, figures={**draw.figures, **fitted})
        settings = replace(settings, fidelity=task.fidelity)
        cluster = uncover(task.cluster, draw.hidden)
        named = {scenario.name: scenario for scenario in cluster.topology.scenarios}
        return [[Found(result.images_per_s, result.breakdown.exposed_s, result.step_s)
                 for result in run_scenario(cluster, named.get(scenario.name, scenario), gpus,
                                            settings)]
                for scenario, gpus in task.rows]
    except TopologyError:
        return None


def _interval(answers: Answers, *, refit: bool) -> Interval | None:
    """P10, P50 and P90 of one row, from what each draw comes to."""
    rates, exposed_s, step_s = answers.T
    if np.ptp(rates) <= SAME * rates.max():
        return None
    low, middle, high = np.quantile(rates, (TAIL, 0.5, 1.0 - TAIL)).tolist()
    least_s, middle_s, most_s = np.quantile(exposed_s, (TAIL, 0.5, 1.0 - TAIL)).tolist()
    return Interval(low, middle, high, least_s, middle_s, most_s, len(answers), refit,
                    float(rates[0] * step_s[0]))


def _causes(open_: Sequence[Unknown], rates: Sequence[float | None]) -> tuple[Cause, ...]:
    """Causes of one row, from its images/s at both ends of each unknown and with other seeds."""
    found = []
    for number, unknown in enumerate(open_):
        low, high = rates[2 * number: 2 * number + 2]
        if low is not None and high is not None:
            found.append(Cause(unknown.name, unknown.quantile(TAIL), unknown.quantile(1.0 - TAIL),
                               low, high))
    first, last = 2 * len(open_), 2 * len(open_) + PORT_DRAWS
    for label, some in ((PORTS, rates[first:last]), (CONNECTIONS, rates[last:])):
        moved_to = [rate for rate in some if rate is not None]
        if moved_to:
            found.append(Cause(label, None, None, min(moved_to), max(moved_to)))
    moved = [cause for cause in found if cause.width > SAME * max(cause.at_low, cause.at_high)]
    return tuple(sorted(moved, key=lambda cause: -cause.width))
