"""Quasi-random draws of parameters that are known only within an interval.

A value is the median of its distribution: the true one is as likely below it as above. So the
answer at the values lies in the middle of the draws' answers and not at their edge, as it would if
an interval that reaches far to one side were drawn as if its value stood in the middle.

How probability lies on either side follows from how the value is known (`Parameter`). One that is
measured, published or fitted is the best estimate, and others are the less likely the further away,
to nothing at the interval's ends (a triangle on either side). Of an assumed value only the bounds
are known: on either side all values are alike likely. (Guide to the Expression of Uncertainty in
Measurement, JCGM 100:2008, 4.3.9 for likelier values, 4.3.7 for bounds alone.) Costs, rates and
sizes are known up to a factor, so both hold for the logarithm; an interval that begins at 0 is
taken as it is.

The points are Halton's sequence (1960), each digit permuted at random, so that no two of its
dimensions run alike and few points fill every dimension evenly.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SMALLEST_DIGIT = 2.0 ** -40


class Unknown(NamedTuple):
    """A parameter and the interval in which it may lie."""

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
    """Points of the unit cube, float64[count, dimensions]; the first of more are the same points.

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
