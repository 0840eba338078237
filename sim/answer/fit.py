"""Fit parameters to published rows.

A row under ``expect:`` may name the one parameter that is fitted to it (``fits:``), e.g.
``kernel-tcp.cost_per_byte``, ``horovod.step_overhead`` or ``gpus.effective``. `fit` solves for
these parameters one after the other, in the file's order, since each row depends on those before.
What a published throughput leaves open all the same, `sim.answer.uncertainty` tells.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from sim.answer.root import NoRootError, find_root
from sim.answer.scenario import Settings, run_scenario
from sim.schema.errors import Problem, TopologyError
from sim.schema.parameters import FrameworkCosts, HostStack, load_framework, load_stack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sim.cluster.cluster import Cluster
    from sim.records.results import ScenarioResult
    from sim.schema.model import Topology
    from sim.schema.scenario_keys import Expect

GPU_SPEED = "gpus.effective"
"""Name under which the speed of all GPUs can be fitted."""
ACCURACY = 1e-6
"""Relative difference of a step time at which a fit ends."""
PROBE = 0.05
"""Share of a cost, or of the step where there is none, by which `fit_slopes` raises it to look how
the step grows."""


def fit(cluster: Cluster, settings: Settings, *, accuracy: float = ACCURACY,
        slopes: Mapping[str, float] = MappingProxyType({})) -> dict[str, float]:
    """Values of the parameters that the file's rows name, by name, in the file's order.

    Raises TopologyError where a row names no parameter, or one that has no effect on it.

    Args:
        cluster: the built topology; its values are where the search begins.
        settings: figures that hold meanwhile, beside those fitted.
        accuracy: largest relative error of a fitted row's step time.
        slopes: see `fit_slopes`; they save a run a parameter and change no answer by more than
            the accuracy.

    """
    figures = dict(settings.figures)
    fitted: dict[str, float] = {}
    for number, expect in enumerate(cluster.topology.expect):
        if expect.fits is None:
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
    """Value that the files give for a parameter by its name in ``fits:``; raises Problem."""
    if name == GPU_SPEED:
        return float(cluster.flops.max())
    of, _, parameter = name.rpartition(".")
    value = getattr(getattr(_owner(cluster.topology, of), parameter, None), "value", None)
    if value is None:
        raise Problem(f"{name!r} names no parameter", found=name,
                      allowed=f"{GPU_SPEED}, or a stack or framework, a dot and its parameter")
    return float(value)


def find_row(cluster: Cluster, expect: Expect, settings: Settings) -> ScenarioResult:
    """Simulate the row that an expectation is about."""
    scenario = next(s for s in cluster.topology.scenarios if s.name == expect.scenario)
    results = run_scenario(cluster, scenario, expect.gpus, settings)
    return next(result for result in results if result.job == (expect.job or ""))


def fits_hold(cluster: Cluster, found: Iterable[ScenarioResult] = ()) -> bool:
    """Whether the file fits parameters to rows of its cluster, and these come out as published.

    Rows are simulated unless they are ``found`` already.
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
    """How the step times of fitted rows grow with what is fitted to them, by its name.

    As a share of the time, for each unit of the cost, at the present values; without the speed of
    GPUs, in whose cost a step time is next to proportional.
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
