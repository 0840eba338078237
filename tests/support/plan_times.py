"""Closed forms of plans: the time of phases on the textbook's network.

Every rank (or, for 2D, every host) has one port that sends and receives at B bytes a second at
once, and every message starts with a latency of alpha.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from harp.collectives.collective_plan import Plan
    from harp.collectives.ir import Phase

ALPHA_S, RATE = 3e-6, 12.5e9
SIZES = (8, 1 << 10, 1 << 20, 4 << 30)


def port_s(src: np.ndarray, dst: np.ndarray, nbytes: np.ndarray, group: int = 1) -> float:
    """Time that the busiest port needs; ``group`` consecutive ranks share one."""
    return max(float(np.bincount(end // group, nbytes).max()) for end in (src, dst)) / RATE


def phase_s(phase: Phase, group: int = 1) -> float:
    """Duration of a phase whose steps all wait for one another; a tree's as its manual has it."""
    fluid_s = port_s(phase.src, phase.dst, phase.bytes_per_edge, group)
    if phase.feeds is None or phase.is_ring or not len(phase.feeds.source):
        return phase.steps * ALPHA_S + fluid_s
    hops, share = int(phase.feeds.level.max()) + 1, 1 / phase.steps
    chunk_s = float(phase.bytes_per_edge.max()) * share / RATE
    return hops * (ALPHA_S + 2 * chunk_s) + fluid_s * (1 - share)


def plan_s(plan: Plan) -> float:
    return sum(phase_s(phase) for phase in plan.phases() if not phase.local)


def close(value: float, wanted: float, slack_bytes: int) -> bool:
    """Equal but for elements that do not divide evenly."""
    return abs(value - wanted) <= 1e-9 * wanted + slack_bytes / RATE
