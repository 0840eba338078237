"""Robust linear regression with parameters that are never negative, and intervals by bootstrap.

Errors of measured times are relative: a row counts by its error as a share of its time. Huber's
weights (P. Huber, Robust Statistics, 1981; constant 1.345) keep single bad rows from pulling.
Intervals are the central 95 % of 500 wild bootstraps (C. Wu, Annals of Statistics 1986): each row
keeps its place and its own error, corrected for its leverage, with a random sign, so that rows may
differ in noise. The signs come from a fixed seed; equal data give equal intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

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
    values = _fit(unit, target[None])[0]
    fitted = unit @ values
    errors = target - fitted
    few = rows - parameters < FEW
    if few:
        noise = np.maximum(np.abs(errors), ASSUMED_SCATTER)
    else:
        noise = np.abs(errors) / np.maximum(1.0 - _leverage(unit), 0.1)
    signs = np.random.default_rng(SEED).choice((-1.0, 1.0), (BOOTSTRAPS, rows))
    samples = _fit(unit, fitted + noise * signs)
    tail = (1.0 - COVERED) / 2
    low, high = np.quantile(samples, (tail, 1.0 - tail), axis=0)
    return Estimate(values / size, np.minimum(low, values) / size, np.maximum(high, values) / size,
                    float(np.median(np.abs(errors))), few)


def _fit(design: Floats, targets: Floats) -> Floats:
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
