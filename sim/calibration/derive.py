"""Derive a host stack's parameters from measured times by robust linear regression.

Each measured time is a linear `Equation` in the parameters. A parameter is fitted if, with its
value of kernel TCP, it makes up a twentieth of some row, and if no parameters with larger parts can
replace it. The others keep the base's values, and their part of each time is subtracted first. So
one ping-pong gives a start latency and no cost per byte, and streams at one MTU give a cost per
byte but keep the base's cost per packet.

Regression
----------
Parameters are never negative. Errors of measured times are relative: a row counts by its error as a
share of its time. Huber's
weights (P. Huber, Robust Statistics, 1981; constant 1.345) keep single bad rows from pulling.
Intervals are the central 95 % of 500 wild bootstraps (C. Wu, Annals of Statistics 1986): each row
keeps its place and its own error, corrected for its leverage, with a random sign, so that rows may
differ in noise. The signs come from a fixed seed; equal data give equal intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.report.numbers import percent
from sim.schema.input_errors import Problem
from sim.schema.parameters import load_stack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from sim.schema.parameters import HostStack

    Floats = NDArray[np.float64]

CPU = ("cost_per_byte", "cost_per_packet")
"""Costs of a core, which run while the network carries the bytes."""
SERIAL = ("start_latency", "cost_per_message")
"""Costs that nothing hides."""


@dataclass(frozen=True)
class Equation:
    """``time = fixed + serial costs + max(floor, CPU costs)``, all in seconds."""

    time_s: float
    coefficients: Mapping[str, float]
    """Count of each parameter, by its name in `CPU` and `SERIAL`."""
    fixed_s: float = 0.0
    """Time of the network independent of the stack: its latencies."""
    floor_s: float = 0.0
    """Time that the network needs for the bytes even if the stack costs nothing."""

    def cost_s(self, names: tuple[str, ...], values: Mapping[str, float]) -> float:
        """Seconds that the parameters ``names`` take at ``values``."""
        return sum(self.coefficients.get(name, 0.0) * values[name] for name in names)


SEED = 1
BOOTSTRAPS = 500
COVERED = 0.95
HUBER = 1.345
FEW = 3
"""Fewer rows than this beyond the number of parameters say nothing about their own scatter."""
ASSUMED_SCATTER = 0.15
"""Relative error of a row when there are few: what single runs on shared machines differ by."""
_ITERATIONS = 20
_MAD_TO_SIGMA = 1.4826
_LEAST_SCATTER = 1e-9


@dataclass(frozen=True)
class Estimate:
    """Values of the parameters, their intervals, and the rows' scatter."""

    values: Floats
    low: Floats
    high: Floats
    scatter: float
    """Median relative error of a row."""
    few: bool
    """Whether the intervals rest on `ASSUMED_SCATTER` because the rows are few."""


def estimate(design: Floats, times: Floats, scale: Floats | None = None) -> Estimate:
    """Fit ``times`` ≈ ``design`` @ values with values of 0 or more.

    Args:
        design: float64[rows, parameters], of full column rank.
        times: float64[rows].
        scale: float64[rows], above 0: what errors are relative to; ``times`` unless given.

    """
    rows, parameters = design.shape
    scale = times if scale is None else scale
    scaled, target = design / scale[:, None], times / scale
    size = np.linalg.norm(scaled, axis=0)
    unit = scaled / size
    values = _fit_robustly(unit, target[None])[0]
    fitted = unit @ values
    errors = target - fitted
    few = rows - parameters < FEW
    if few:
        noise = np.maximum(np.abs(errors), ASSUMED_SCATTER)
    else:
        noise = np.abs(errors) / np.maximum(1.0 - _leverage(unit), 0.1)
    signs = np.random.default_rng(SEED).choice((-1.0, 1.0), (BOOTSTRAPS, rows))
    samples = _fit_robustly(unit, fitted + noise * signs)
    tail = (1.0 - COVERED) / 2
    low, high = np.quantile(samples, (tail, 1.0 - tail), axis=0)
    return Estimate(values / size, np.minimum(low, values) / size, np.maximum(high, values) / size,
                    float(np.median(np.abs(errors))), few)


def _fit_robustly(design: Floats, targets: Floats) -> Floats:
    """Huber's estimates of values of 0 or more, shape (samples, parameters).

    ``targets`` has shape (samples, rows); all samples are fitted side by side.
    """
    weights = np.ones_like(targets)
    values = np.zeros((len(targets), design.shape[1]))
    for _ in range(_ITERATIONS):
        before = values
        gram = np.einsum("sr,ri,rj->sij", weights, design, design)
        values = _not_negative(gram, (weights * targets) @ design)
        if np.allclose(values, before, rtol=1e-6, atol=0.0):
            break
        errors = np.abs(targets - values @ design.T)
        scatter = np.maximum(_MAD_TO_SIGMA * np.median(errors, axis=1, keepdims=True),
                             _LEAST_SCATTER)
        weights = np.minimum(1.0, HUBER * scatter / np.maximum(errors, _LEAST_SCATTER))
    return values


def _not_negative(gram: Floats, moments: Floats) -> Floats:
    """Solve normal equations; what comes out below 0 is held at 0, the worst first."""
    held = np.zeros(moments.shape, bool)
    unit = np.eye(moments.shape[1])
    while True:
        free = ~held
        system = np.where(free[:, :, None] & free[:, None, :], gram, unit)
        values = np.linalg.solve(system, np.where(free, moments, 0.0)[:, :, None])[:, :, 0]
        below = values.min(axis=1) < 0.0
        if not below.any():
            return np.asarray(values)
        held[below, values[below].argmin(axis=1)] = True


def _leverage(design: Floats) -> Floats:
    """Share of each row in its own fitted value (the diagonal of the hat matrix)."""
    q = np.linalg.qr(design)[0]
    return np.asarray((q**2).sum(axis=1))


NAMES = (*CPU, *SERIAL)
SHARE = 0.05
"""Least share of some row's time that a parameter must have to be fitted."""
APART = 0.05
"""Least sine of the angle between a parameter's column and those already chosen."""
POOR = 0.1
"""Median error of a row above which the model does not fit."""
HEADROOM = 1.05
"""A CPU time within this factor of the network's own time may be no CPU time at all."""


@dataclass(frozen=True)
class Figure:
    """A derived parameter, in SI units."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Derived:
    """Parameters of a stack from measurements."""

    figures: tuple[Figure, ...]
    rows: int
    scatter: float
    """Median relative error of a row."""
    notes: tuple[str, ...]
    few: bool
    """Whether intervals rest on an assumed scatter because the rows are few."""


def derive(equations: Sequence[Equation], ceilings: Sequence[float], base: HostStack) -> Derived:
    """Fit what can be fitted; raises Problem where that is nothing.

    Args:
        equations: measured times.
        ceilings: seconds per bit of flows that nothing else limited.
        base: gives the parameters that are not fitted.

    """
    figures: list[Figure] = []
    found: list[Estimate] = []
    notes: list[str] = []
    if equations:
        chosen, estimates, notes = _from_times(equations, base)
        figures += [_figure(name, estimates, i) for i, name in enumerate(chosen)]
        found += [estimates] if chosen else []
    if ceilings:
        inverse = estimate(np.ones((len(ceilings), 1)), np.array(ceilings))
        value, low, high = (1.0 / float(v[0])
                            for v in (inverse.values, inverse.high, inverse.low))
        figures.append(Figure("flow_rate", value, low, high))
        found.append(inverse)
    if not figures:
        raise Problem(" ".join(notes) or "the rows do not depend on the stack",
                      allowed="rows that depend on a stack's cost to a good part")
    scatter, few = max(e.scatter for e in found), any(e.few for e in found)
    if few:
        notes.append(f"Rows so few say nothing about their own scatter: "
                     f"{percent(ASSUMED_SCATTER)} is assumed.")
    elif scatter > POOR:
        notes.append(f"Half of the rows are off by more than {percent(scatter)}: they do not "
                     "follow one latency and one cost a byte (another algorithm or protocol?).")
    return Derived(tuple(figures), len(equations) + len(ceilings), scatter, tuple(notes), few)


def _figure(name: str, found: Estimate, index: int) -> Figure:
    return Figure(name, *(float(v[index]) for v in (found.values, found.low, found.high)))


def _from_times(equations: Sequence[Equation],
                base: HostStack) -> tuple[list[str], Estimate, list[str]]:
    """Names that are fitted, their estimate, and what else to say."""
    chosen = _identified(equations)
    values = {name: getattr(base, name).value for name in NAMES}
    found = _fit(equations, chosen, values, limited=False)
    fitted = values | dict(zip(chosen, found.values.tolist(), strict=True))
    if not set(chosen) & set(CPU) or not _limited(equations, fitted):
        return chosen, found, []
    notes = ["Large sizes run at the network's own rate, so they do not show the CPU cost of a "
             "byte or packet; the base's stay."]
    chosen = [name for name in chosen if name not in CPU]
    small = [equation for equation in equations if not _is_bulk(equation)]
    if len(small) < len(chosen):
        chosen = []
    return chosen, (_fit(small, chosen, values, limited=True) if chosen else found), notes


def _identified(equations: Sequence[Equation]) -> list[str]:
    """Choose the parameters that the rows determine, those with the largest parts first."""
    scale = load_stack("kernel-tcp")
    counts = np.array([[e.coefficients.get(name, 0.0) for name in NAMES] for e in equations])
    parts = counts * [getattr(scale, name).value for name in NAMES]
    shares = (parts / parts.sum(axis=1, keepdims=True)).max(axis=0)
    weighted = counts / np.array([[e.time_s] for e in equations])
    chosen: list[int] = []
    for column in np.argsort(-shares, kind="stable").tolist():
        if shares[column] >= SHARE and _apart(weighted, chosen, column) >= APART:
            chosen.append(column)
    return [name for number, name in enumerate(NAMES) if number in chosen]


def _apart(columns: Floats, chosen: Sequence[int], column: int) -> float:
    """Sine of the angle between one column and the plane of the chosen ones."""
    unit = columns[:, column] / np.linalg.norm(columns[:, column])
    if chosen:
        plane = np.linalg.qr(columns[:, chosen] / np.linalg.norm(columns[:, chosen], axis=0))[0]
        unit = unit - plane @ (plane.T @ unit)
    return float(np.linalg.norm(unit))


def _fit(equations: Sequence[Equation], chosen: Sequence[str], values: dict[str, float], *,
         limited: bool) -> Estimate:
    """Fit ``chosen``; of the other parameters, and of the network, the known part is taken off."""
    kept = values | dict.fromkeys(chosen, 0.0)
    known = np.array([e.fixed_s + e.cost_s(SERIAL, kept)
                      + (e.floor_s if limited else e.cost_s(CPU, kept)) for e in equations])
    times = np.array([e.time_s for e in equations])
    if not (known < times).all():
        worst = int(np.argmax(known / times))
        raise Problem(f"a time of {times[worst] * 1e6:.4g} us, but the network and "
                      f"the parameters that are not fitted alone take {known[worst] * 1e6:.4g} us",
                      allowed="longer times, a base with lower costs, or another --topology")
    design = np.array([[e.coefficients.get(name, 0.0) for name in chosen] for e in equations])
    # The known part takes away time but no scatter, so a row keeps the weight of its whole time.
    return estimate(design, times - known, times)


def _is_bulk(equation: Equation) -> bool:
    """Whether the network needs half of the row's time for the bytes alone."""
    return equation.floor_s > 0.5 * (equation.time_s - equation.fixed_s)


def _limited(equations: Sequence[Equation], values: dict[str, float]) -> bool:
    """Whether the network's own time is as good an explanation of the bulk as CPU time."""
    bulk = [(e.cost_s(CPU, values), e.floor_s) for e in equations if _is_bulk(e)]
    return bool(bulk) and float(np.median([cpu / floor for cpu, floor in bulk])) < HEADROOM
