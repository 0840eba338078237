"""Fit parameters to published rows, and find the interval that unidentified parameters leave open.

A row under ``expect:`` may name the one parameter that is fitted to it (``fits:``), e.g.
``kernel-tcp.cost_per_byte``, ``horovod.step_overhead`` or ``gpus.effective``. `fit` solves for
these parameters one after the other, in the file's order, since each row depends on those before.

A published throughput does not identify everything. `intervals` puts every parameter of
`UNIDENTIFIED` at the fast end of its bounds, *fits again* so that the published rows still hold,
predicts the other rows, and does the same at the slow end. Where the file is no longer about the
cluster that the published rows come from (`fits_hold` says so), or fits nothing, the ends are taken
without fitting again. More of `UNIDENTIFIED` never makes a row
slower (or never faster), fitted again or not; so the two ends bound all that lies between them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sim.calibration.root import NoRootError, find_root
from sim.results import Interval
from sim.scenario import Settings, run_scenario
from sim.schema.errors import Problem, TopologyError
from sim.schema.parameters import FrameworkCosts, HostStack, load_framework, load_stack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sim.cluster import Cluster
    from sim.results import ScenarioResult
    from sim.schema.model import Topology
    from sim.schema.scenario import Expect, Scenario

UNIDENTIFIED = {"overlap": 1, "selection_per_element": -1, "per_tensor": -1, "cores": 1}
"""Parameters that a throughput table does not identify; +1: more is faster, -1: less is faster."""
GPU_SPEED = "gpus.effective"
"""Name under which the speed of all GPUs can be fitted."""
ACCURACY = 1e-6
"""Relative difference of a step time at which a fit ends."""
INTERVAL_ACCURACY = 1e-4
"""The same where a fit is made again for an interval."""


def fit(cluster: Cluster, settings: Settings, *, accuracy: float = ACCURACY) -> dict[str, float]:
    """Values of the parameters that the file's rows name, by name, in the file's order.

    Raises TopologyError where a row names no parameter, or one that has no effect on it.

    Args:
        cluster: the built topology; its values are where the search begins.
        settings: figures that hold meanwhile, beside those fitted.
        accuracy: largest relative error of a fitted row's step time.

    """
    figures = dict(settings.figures)
    fitted: dict[str, float] = {}
    for number, expect in enumerate(cluster.topology.expect):
        if expect.fits is None:
            continue
        try:
            fitted[expect.fits] = _solve(cluster, expect, expect.fits, figures, accuracy)
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


def fits_hold(cluster: Cluster) -> bool:
    """Whether the file fits parameters to rows of its cluster, and these come out as published."""
    if cluster.topology.is_elsewhere:
        return False
    fitted = [expect for expect in cluster.topology.expect if expect.fits is not None]
    rows = [find_row(cluster, expect, Settings()) for expect in fitted]
    return bool(fitted) and all(abs(row.images_per_s / expect.images_per_s - 1) <= expect.within
                                for row, expect in zip(rows, fitted, strict=True))


def intervals(cluster: Cluster, rows: Sequence[tuple[Scenario, int]], *,
              refit: bool = True) -> list[Interval | None]:
    """For each (scenario, gpus), what the unidentified parameters leave open; None if nothing.

    With ``refit`` the file's fitted parameters are fitted again at both ends.
    """
    fast, slow = (_predict(cluster, rows, sign, refit=refit) for sign in (1, -1))
    return [_interval(*ends, refit) for ends in zip(fast, slow, strict=True)]


def _owner(topology: Topology, name: str) -> HostStack | FrameworkCosts | None:
    try:
        return load_stack(name, topology.stacks)
    except TopologyError:
        pass
    try:
        return load_framework(name, topology.frameworks)
    except TopologyError:
        return None


def _solve(cluster: Cluster, expect: Expect, name: str, figures: Mapping[str, float],
           accuracy: float) -> float:
    """Value of ``name`` at which the row's step takes the published time."""
    def excess(value: float) -> float:
        result = find_row(cluster, expect, Settings({**figures, name: value}))
        return expect.images_per_s / result.images_per_s - 1.0

    def excess_of_cost(seconds_per_flop: float) -> float:
        return excess(1.0 / seconds_per_flop) if seconds_per_flop else -1.0

    start = present_value(cluster, name)
    try:
        if name == GPU_SPEED:  # a step time is linear in the cost, not in the speed
            return 1.0 / find_root(excess_of_cost, 1.0 / start, accuracy)
        return find_root(excess, start, accuracy)
    except NoRootError:
        raise Problem(f"{name} has no effect on its row, or no value of it gives the row",
                      allowed="a parameter that the row depends on") from None


def _predict(cluster: Cluster, rows: Sequence[tuple[Scenario, int]], sign: int, *,
             refit: bool) -> list[ScenarioResult | None]:
    """Rows with all unidentified parameters at their fast (1) or slow (-1) end."""
    figures = {f"{owner.name}.{name}": _end(owner, name, sign * better)
               for owner in used_sets(cluster.topology)
               for name, better in UNIDENTIFIED.items() if hasattr(owner, name)}
    if refit:
        figures |= fit(cluster, Settings(figures), accuracy=INTERVAL_ACCURACY)
    settings = Settings(figures)
    return [run_scenario(cluster, scenario, gpus, settings)[0] if gpus > 1 else None
            for scenario, gpus in rows]


def _interval(fast: ScenarioResult | None, slow: ScenarioResult | None,
              refit: bool) -> Interval | None:
    if fast is None or slow is None:
        return None
    if math.isclose(fast.step_s, slow.step_s, rel_tol=10 * INTERVAL_ACCURACY):
        return None
    low, high = sorted((slow.images_per_s, fast.images_per_s))
    least, most = sorted((slow.breakdown.exposed_s, fast.breakdown.exposed_s))
    return Interval(low, high, least, most, tuple(UNIDENTIFIED), refit)


def used_sets(topology: Topology, stack: str | None = None) -> list[HostStack | FrameworkCosts]:
    """Every host stack and framework that the file's scenarios use, and ``stack``."""
    stacks = {scenario.stack for scenario in topology.scenarios} | ({stack} if stack else set())
    workloads = [topology.workload, *(job.workload for job in topology.jobs if job.workload)]
    frameworks = {scenario.framework for scenario in topology.scenarios if scenario.framework}
    frameworks |= {workload.framework for workload in workloads}
    return [*(load_stack(name, topology.stacks) for name in sorted(stacks)),
            *(load_framework(name, topology.frameworks) for name in sorted(frameworks))]


def _end(owner: HostStack | FrameworkCosts, name: str, sign: int) -> float:
    low, high = getattr(owner, name).interval
    return float(high if sign > 0 else low)
