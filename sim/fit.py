"""Fit parameters to published rows, and the interval that parameters nobody identified leave open.

A row under ``expect:`` may name the one parameter that was fitted to it (``fits:``), e.g.
``kernel-tcp.cost_per_byte``, ``horovod.step_overhead`` or ``gpus.effective``. `fit` solves for these
parameters, one after the other in the file's order.

An interval is found by putting every unidentified parameter at its fast end, and at its slow end,
*fitting again* each time, so that the published rows still hold, and predicting the other rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sim.results import Interval
from sim.scenario import Settings, run_scenario
from sim.schema.errors import Problem
from sim.schema.parameters import load_framework, load_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sim.cluster import Cluster
    from sim.schema.parameters import FrameworkCosts, HostStack
    from sim.schema.scenario import Expect, Scenario

UNIDENTIFIED = {"overlap": 1, "selection_per_element": -1, "per_tensor": -1, "cores": 1}
"""Parameters that a throughput table does not identify; +1: more is faster, -1: less is faster."""
TRIES = 60


def fit(cluster: Cluster, settings: Settings, *, accuracy: float = 1e-6) -> dict[str, float]:
    """Values of all fitted parameters, starting from ``settings``, which they are not part of."""
    figures = dict(settings.figures)
    fitted: dict[str, float] = {}
    for number, expect in enumerate(cluster.topology.expect):
        if expect.fits is None:
            continue
        fitted[expect.fits] = _solve(cluster, expect, number, figures, accuracy)
        figures[expect.fits] = fitted[expect.fits]
    return fitted


def shipped_value(cluster: Cluster, name: str) -> float:
    """The present value of a parameter by its name in ``fits:``; raises Problem."""
    of, _, parameter = name.rpartition(".")
    topology = cluster.topology
    if name == "gpus.effective":
        return float(cluster.flops.max())
    for load, sets in ((load_stack, topology.stacks), (load_framework, topology.frameworks)):
        try:
            owner = load(of, sets)  # type: ignore[operator]
        except ValueError:
            continue
        if hasattr(getattr(owner, parameter, None), "value"):
            return float(getattr(owner, parameter).value)
    raise Problem(f"{name!r} names no parameter", found=name,
                  allowed="gpus.effective, or a stack or framework, a dot and its parameter")


def _solve(cluster: Cluster, expect: Expect, number: int, figures: Mapping[str, float],
           accuracy: float) -> float:
    """Secant steps on the step time, which is nearly linear in every cost."""
    assert expect.fits is not None
    topology = cluster.topology
    scenario = next(s for s in topology.scenarios if s.name == expect.scenario)
    name = expect.fits

    def excess(value: float) -> float:
        """Step time over the published one, relative."""
        trial = Settings({**figures, name: value})
        result = run_scenario(cluster, scenario, expect.gpus, trial)[0]
        return expect.images_per_s / result.images_per_s - 1.0

    try:
        return _secant(excess, shipped_value(cluster, name), accuracy)
    except Problem as problem:
        raise topology.error(problem.under("expect", number, "fits")) from problem


def _secant(excess: Callable[[float], float], start: float, accuracy: float) -> float:
    here, there = start, start * 1.05
    f_here, f_there = excess(here), excess(there)
    for _ in range(TRIES):
        if abs(f_here) <= accuracy:
            return here
        if here == 0.0 and f_here > 0.0 and f_there > f_here:
            return 0.0  # even at no cost the row is too slow: what is nearest to it
        if f_there == f_here:
            break
        wanted = here - f_here * (there - here) / (f_there - f_here)
        there, f_there = here, f_here
        here = min(max(wanted, 0.0), there * 4)
        f_here = excess(here)
    raise Problem("has no effect on its row, or no value of it gives the row",
                  allowed="a parameter that the row depends on")


def intervals(cluster: Cluster, rows: Sequence[tuple[Scenario, int]]) -> list[Interval | None]:
    """For each (scenario, gpus), what the unidentified parameters leave open; None if nothing."""
    ends = []
    for sign in (1, -1):
        figures: dict[str, float] = {}
        for owner in _owners(cluster):
            figures |= {f"{owner.name}.{name}": _end(owner, name, sign * better)
                        for name, better in UNIDENTIFIED.items() if hasattr(owner, name)}
        figures |= fit(cluster, Settings(figures), accuracy=1e-4)
        ends.append([run_scenario(cluster, scenario, gpus, Settings(figures))[0]
                     if gpus > 1 else None for scenario, gpus in rows])
    found: list[Interval | None] = []
    for fast, slow in zip(*ends, strict=True):
        if fast is None or slow is None or math.isclose(fast.step_s, slow.step_s, rel_tol=1e-3):
            found.append(None)
            continue
        low, high = sorted((slow.images_per_s, fast.images_per_s))
        exposed = sorted((slow.breakdown.exposed_s, fast.breakdown.exposed_s))
        found.append(Interval(low, high, exposed[0], exposed[1], tuple(UNIDENTIFIED)))
    return found


def _owners(cluster: Cluster) -> list[HostStack | FrameworkCosts]:
    """All stacks and frameworks that the file's scenarios use."""
    topology = cluster.topology
    stacks = {scenario.stack for scenario in topology.scenarios}
    workloads = [topology.workload, *(job.workload for job in topology.jobs if job.workload)]
    frameworks = {scenario.framework for scenario in topology.scenarios if scenario.framework}
    frameworks |= {workload.framework for workload in workloads}
    return [*(load_stack(name, topology.stacks) for name in sorted(stacks)),
            *(load_framework(name, topology.frameworks) for name in sorted(frameworks))]


def _end(owner: HostStack | FrameworkCosts, name: str, sign: int) -> float:
    low, high = getattr(owner, name).interval
    return float(high if sign > 0 else low)
