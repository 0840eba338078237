"""Derive a host stack's parameters from equations, as many as the data can tell apart.

A parameter is fitted if, at the size it has in kernel TCP, it makes up a twentieth of some row, and
if no parameters that make up more can stand in for it. The others keep the base's values, whose
part of each time is taken off first. So one ping-pong gives a start latency and no cost per byte,
and streams at one MTU give a cost per byte that leaves the base's cost per packet as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.calibration.equation import CPU, SERIAL, Equation
from sim.calibration.regress import Estimate, estimate
from sim.report.numbers import percent
from sim.schema.errors import Problem
from sim.schema.parameters import load_stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from sim.schema.parameters import HostStack

    Floats = NDArray[np.float64]

NAMES = (*CPU, *SERIAL)
SHARE = 0.05
"""Least share of some row's time that a parameter must have to be fitted."""
APART = 0.05
"""Least sine of the angle between a parameter's column and those already chosen."""
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
    """What measurements give for a stack."""

    figures: tuple[Figure, ...]
    rows: int
    scatter: float
    """Median relative error of a row."""
    notes: tuple[str, ...]


def derive(equations: Sequence[Equation], ceilings: Sequence[float], base: HostStack) -> Derived:
    """Fit what can be fitted; raises Problem where that is nothing.

    Args:
        equations: measured times.
        ceilings: seconds per bit of flows that nothing else limited.
        base: gives the parameters that are not fitted.

    """
    figures: list[Figure] = []
    notes: list[str] = []
    scatters = []
    if equations:
        figures, scatter, notes = _from_times(equations, base)
        scatters.append(scatter)
    if ceilings:
        found = estimate(np.ones((len(ceilings), 1)), np.array(ceilings))
        value, low, high = (1.0 / float(v[0]) for v in (found.values, found.high, found.low))
        figures.append(Figure("flow_rate", value, low, high))
        scatters.append(found.scatter)
    if not figures:
        raise Problem(" ".join(notes) or "they tell nothing of the stack",
                      allowed="rows of which a stack's cost makes up a good part")
    return Derived(tuple(figures), len(equations) + len(ceilings), max(scatters), tuple(notes))


def _from_times(equations: Sequence[Equation],
                base: HostStack) -> tuple[list[Figure], float, list[str]]:
    chosen = _identified(equations)
    values = {name: getattr(base, name).value for name in NAMES}
    found = _fit(equations, chosen, values, limited=False)
    fitted = values | dict(zip(chosen, found.values.tolist(), strict=True))
    notes = []
    if set(chosen) & set(CPU) and _limited(equations, fitted):
        notes.append("Large sizes run at the network's own rate, so they do not tell the CPU cost "
                     "of a byte or packet; the base's stay.")
        chosen = [name for name in chosen if name not in CPU]
        equations = [e for e in equations if not _is_bulk(e)]
        if not chosen or len(equations) < len(chosen):
            return [], 0.0, notes
        found = _fit(equations, chosen, values, limited=True)
    figures = [Figure(name, *map(float, ends))
               for name, *ends in zip(chosen, found.values, found.low, found.high, strict=True)]
    figures.sort(key=lambda figure: NAMES.index(figure.name))
    if found.scatter > 0.1:
        notes.append(f"Half of the rows are off by more than {percent(found.scatter)}: they do not "
                     "follow one latency and one cost a byte (another algorithm or protocol?).")
    return figures, found.scatter, notes


def _identified(equations: Sequence[Equation]) -> list[str]:
    """Choose the parameters that the rows tell apart, those that make up most first."""
    scale = load_stack("kernel-tcp")
    counts = np.array([[e.coefficients.get(name, 0.0) for name in NAMES] for e in equations])
    parts = counts * [getattr(scale, name).value for name in NAMES]
    shares = (parts / parts.sum(axis=1, keepdims=True)).max(axis=0)
    weighted = counts / np.array([[e.time_s] for e in equations])
    chosen: list[int] = []
    for column in np.argsort(-shares, kind="stable").tolist():
        if shares[column] >= SHARE and _apart(weighted, chosen, column) >= APART:
            chosen.append(column)
    return [NAMES[column] for column in chosen]


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
        raise Problem(f"a time of {times[worst] * 1e6:.4g} us, of which the network and the "
                      f"parameters that are not fitted take {known[worst] * 1e6:.4g} us",
                      allowed="longer times, a base with lower costs, or another --topology")
    design = np.array([[e.coefficients.get(name, 0.0) for name in chosen] for e in equations])
    # The known part takes away time but no scatter, so a row keeps the weight of its whole time.
    return estimate(design, times - known, times)


def _is_bulk(equation: Equation) -> bool:
    """Tell a row in which the network needs half of the time for the bytes alone."""
    return equation.floor_s > 0.5 * (equation.time_s - equation.fixed_s)


def _limited(equations: Sequence[Equation], values: dict[str, float]) -> bool:
    """Whether the network's own time is as good an explanation of the bulk as CPU time."""
    bulk = [(e.cost_s(CPU, values), e.floor_s) for e in equations if _is_bulk(e)]
    return bool(bulk) and float(np.median([cpu / floor for cpu, floor in bulk])) < HEADROOM
