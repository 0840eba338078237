"""Fit parameters to published rows.

A row under ``expect:`` may name the one parameter that is fitted to it (``fits:``), e.g.
``kernel-tcp.cost_per_byte``, ``horovod.step_overhead`` or ``gpus.effective``. `fit` solves for
these parameters one after the other, in the file's order, since each row depends on those before.
Each call of the solved function is a simulation, so `find_root` needs few of them.
`sim.answer.uncertainty` has what a published throughput leaves open.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from sim.answer.scenario import Settings, run_scenario
from sim.schema.input_errors import Problem, TopologyError
from sim.schema.parameters import FrameworkCosts, HostStack, load_framework, load_stack
from sim.schema.scenario_keys import Expect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sim.cluster.cluster import Cluster
    from sim.records.results import ScenarioResult
    from sim.schema.topology_model import Topology


TRIES = 100
PATIENCE = 5
"""Secant steps before every other step halves the bracket."""
SAME = 1e-9
"""Relative width of a bracket around a jump."""
_LEAST = 1e-12
_GROWTH = 4.0


class NoRootError(ValueError):
    """The function is nowhere zero, or does not depend on its argument."""


def find_root(excess: Callable[[float], float], start: float, accuracy: float,
              slope: float | None = None) -> float:
    """Value of at least 0 at which the monotonic ``excess`` is 0; raises NoRootError.

    Where ``excess`` jumps over 0, the value at the jump; where a cost of 0 is still too much, 0.
    The search takes secant steps, since a step time is nearly linear in every cost. The first step
    uses ``slope``, or assumes proportion, which holds where the cost alone decides. Where another
    cost hides this one, the value grows until it shows. Once two values bracket the root, every
    step stays between them and narrows the bracket.

    Args:
        excess: the function whose root is searched, as a share of the wanted value.
        start: first value, 0 or more.
        accuracy: largest ``excess`` that counts as 0.
        slope: of ``excess`` near ``start``, above 0, if it is known.

    """
    there, f_there = start, excess(start)
    if abs(f_there) <= accuracy or (slope and start == 0.0 < f_there):
        return start
    here = start / min(max(1.0 + f_there, 1.0 / _GROWTH), _GROWTH) or _LEAST
    if slope:
        here = min(max(start - f_there / slope, 0.0), _GROWTH * start or math.inf)
    f_here = excess(here)
    if start == 0.0 and not slope:
        here, f_here, there, f_there = there, f_there, here, f_here
    ends = {f_there > 0: there}
    for number in range(TRIES):
        if abs(f_here) <= accuracy:
            return here
        if here == 0.0 and f_there > f_here > 0.0:
            return 0.0
        ends[f_here > 0] = here
        if len(ends) == 1:
            wanted = _outward(here, f_here, there, f_there)
        elif math.isclose(*ends.values(), rel_tol=SAME):
            return here
        else:
            halve = number > PATIENCE and number % 2 == 1
            wanted = _inward(here, f_here, there, f_there, ends, halve=halve)
        there, f_there = here, f_here
        here, f_here = wanted, excess(wanted)
    raise NoRootError


def _secant(here: float, f_here: float, there: float, f_there: float) -> float:
    if f_there == f_here:
        return math.inf
    return here - f_here * (there - here) / (f_there - f_here)


def _outward(here: float, f_here: float, there: float, f_there: float) -> float:
    """Next value without a bracket: at most `_GROWTH` times as large, and never below 0."""
    most = _GROWTH * max(here, there)
    return min(max(_secant(here, f_here, there, f_there), 0.0), most)


def _inward(here: float, f_here: float, there: float, f_there: float, ends: Mapping[bool, float],
            *, halve: bool) -> float:
    """Next value between ``ends``: the last one above the root and the last one below it."""
    low, high = sorted(ends.values())
    wanted = _secant(here, f_here, there, f_there)
    return (low + high) / 2 if halve or not low < wanted < high else wanted


GPU_SPEED = "gpus.effective"
"""Name under which the speed of all GPUs can be fitted."""
ACCURACY = 1e-6
"""Relative difference of a step time at which a fit ends."""
PROBE = 0.05
"""Step of `fit_slopes`, as a share of the cost, or of the step time if the cost is 0."""


def fit(cluster: Cluster, settings: Settings, *, accuracy: float = ACCURACY,
        slopes: Mapping[str, float] = MappingProxyType({})) -> dict[str, float]:
    """Values of the parameters that the file's rows name, by name, in the file's order.

    Raises TopologyError where a row names no parameter, or one that has no effect on it.

    Args:
        cluster: the built topology; the search starts at its values.
        settings: other changed figures.
        accuracy: largest relative error of a fitted row's step time.
        slopes: see `fit_slopes`; they save one run for each parameter and change no answer by more
            than the accuracy.

    """
    figures = dict(settings.figures)
    fitted: dict[str, float] = {}
    for number, expect in enumerate(cluster.topology.figures):
        if not isinstance(expect, Expect) or expect.fits is None:
            continue
        try:
            fitted[expect.fits] = _solve(cluster, expect, expect.fits,
                                         replace(settings, figures=figures), accuracy,
                                         slopes.get(expect.fits))
        except Problem as problem:
            raise cluster.topology.error(problem.under("expect", number, "fits")) from problem
        figures[expect.fits] = fitted[expect.fits]
    return fitted


def present_value(cluster: Cluster, name: str) -> float:
    """Current value of the parameter that ``fits:`` names; raises Problem."""
    if name == GPU_SPEED:
        return float(cluster.flops.max())
    of, _, parameter = name.rpartition(".")
    value = getattr(getattr(_owner(cluster.topology, of), parameter, None), "value", None)
    if value is None:
        raise Problem(f"{name!r} names no parameter", found=name,
                      allowed=f"{GPU_SPEED}, or a stack or framework, a dot and its parameter")
    return float(value)


def find_row(cluster: Cluster, expect: Expect, settings: Settings) -> ScenarioResult:
    """Simulate the row of an expectation."""
    scenario = next(s for s in cluster.topology.scenarios if s.name == expect.scenario)
    results = run_scenario(cluster, scenario, expect.gpus, settings)
    return next(result for result in results if result.job == (expect.job or ""))


def fits_hold(cluster: Cluster, found: Iterable[ScenarioResult] = ()) -> bool:
    """Whether the file fits parameters to rows of its cluster, and these agree with the figures.

    Rows that are not in ``found`` are simulated.
    """
    if cluster.topology.is_elsewhere:
        return False
    fitted = [expect for expect in cluster.topology.expect if expect.fits is not None]
    known = {(row.name, row.gpus, row.job): row for row in found}
    rows = [known.get((expect.scenario, expect.gpus, expect.job or ""))
            or find_row(cluster, expect, Settings()) for expect in fitted]
    return bool(fitted) and all(abs(row.images_per_s / expect.images_per_s - 1) <= expect.within
                                for row, expect in zip(rows, fitted, strict=True))


def fit_slopes(cluster: Cluster) -> dict[str, float]:
    """Relative growth of the fitted rows' step times for each unit of the fitted cost, by name.

    Taken at the current values. The speed of GPUs is left out: step time is nearly proportional to
    its inverse.
    """
    slopes = {}
    for expect in cluster.topology.expect:
        if expect.fits is None or expect.fits == GPU_SPEED:
            continue
        value = present_value(cluster, expect.fits)
        step_s = find_row(cluster, expect, Settings()).step_s
        more = PROBE * (value or step_s)
        longer_s = find_row(cluster, expect,
                            Settings(figures={expect.fits: value + more})).step_s
        if longer_s > step_s:
            slopes[expect.fits] = (longer_s / step_s - 1.0) / more
    return slopes


def _owner(topology: Topology, name: str) -> HostStack | FrameworkCosts | None:
    try:
        return load_stack(name, topology.stacks)
    except TopologyError:
        pass
    try:
        return load_framework(name, topology.frameworks)
    except TopologyError:
        return None


def _solve(cluster: Cluster, expect: Expect, name: str, settings: Settings, accuracy: float,
           slope: float | None) -> float:
    """Value of ``name`` at which the row's step takes the published time."""
    def excess(value: float) -> float:
        figures = {**settings.figures, name: value}
        result = find_row(cluster, expect, replace(settings, figures=figures))
        return expect.images_per_s / result.images_per_s - 1.0

    def excess_of_cost(seconds_per_flop: float) -> float:
        return excess(1.0 / seconds_per_flop) if seconds_per_flop else -1.0

    start = present_value(cluster, name)
    try:
        if name == GPU_SPEED:  # a step time is linear in the cost, not in the speed
            return 1.0 / find_root(excess_of_cost, 1.0 / start, accuracy)
        return find_root(excess, start, accuracy, slope)
    except NoRootError:
        raise Problem(f"{name} has no effect on its row, or no value of it gives the row",
                      allowed="a parameter that the row depends on") from None


def used_sets(topology: Topology, stack: str | None = None) -> list[HostStack | FrameworkCosts]:
    """Every host stack and framework that the file's scenarios use, and ``stack``."""
    stacks = {scenario.stack for scenario in topology.scenarios} | ({stack} if stack else set())
    workloads = [topology.workload, *(job.workload for job in topology.jobs if job.workload)]
    frameworks = {scenario.framework for scenario in topology.scenarios if scenario.framework}
    frameworks |= {workload.framework for workload in workloads}
    return [*(load_stack(name, topology.stacks) for name in sorted(stacks)),
            *(load_framework(name, topology.frameworks) for name in sorted(frameworks))]
