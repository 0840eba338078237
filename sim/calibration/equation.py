"""One measured time as a linear equation in a host stack's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

CPU = ("cost_per_byte", "cost_per_packet")
"""Costs of a core, which run while the network carries the bytes."""
SERIAL = ("start_latency", "cost_per_message")
"""Costs that nothing hides."""


@dataclass(frozen=True)
class Equation:
    """``time = fixed + serial costs + max(floor, CPU costs)``, all in seconds."""

    time_s: float
    coefficients: Mapping[str, float]
    """How often each parameter counts, by its name in `CPU` and `SERIAL`."""
    fixed_s: float = 0.0
    """What the network adds whatever the stack costs: its latencies."""
    floor_s: float = 0.0
    """Time that the network needs for the bytes even if the stack costs nothing."""

    def cost_s(self, names: tuple[str, ...], values: Mapping[str, float]) -> float:
        """Seconds that the parameters ``names`` take at ``values``."""
        return sum(self.coefficients.get(name, 0.0) * values[name] for name in names)
