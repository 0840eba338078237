"""Find where a function of a cost, simulated at each call, is zero, in as few calls as it can."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TRIES = 100
PATIENCE = 5
"""Secant steps before every other step halves what is enclosed."""
SAME = 1e-9
"""Relative distance of two values that enclose a jump."""
_LEAST = 1e-12
_GROWTH = 4.0


class NoRootError(ValueError):
    """The function is nowhere zero, or does not depend on its argument."""


def find_root(excess: Callable[[float], float], start: float, accuracy: float,
              slope: float | None = None) -> float:
    """Value from 0 up at which the monotonic ``excess`` is 0; raises NoRootError.

    Where ``excess`` jumps over 0, the value at the jump; where a cost of 0 is still too much, 0.
    Secant steps, since a step time is nearly linear in every cost; the first one goes by the
    ``slope``, or supposes that it is in proportion, as where the cost decides alone. Where another
    cost hides this one, the value grows until it shows. Once two values enclose the wanted one no
    step leaves them, and each of them comes nearer.

    Args:
        excess: what is to be 0, as a share of what is wanted.
        start: where to begin, 0 or more.
        accuracy: what counts as 0.
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
    """Next value while the wanted one is not enclosed: not too far, and never below 0."""
    most = _GROWTH * max(here, there)
    return min(max(_secant(here, f_here, there, f_there), 0.0), most)


def _inward(here: float, f_here: float, there: float, f_there: float, ends: Mapping[bool, float],
            *, halve: bool) -> float:
    """Next value between ``ends``, the last one that gave too much and that gave too little."""
    low, high = sorted(ends.values())
    wanted = _secant(here, f_here, there, f_there)
    return (low + high) / 2 if halve or not low < wanted < high else wanted
