"""Thresholds of the controller.

They are the project's own choices; the trainings of tests/harp/ttf/amp hold for them. Half
precision rounds to 2^-11 (fp16) or 2^-8 (bf16) of a value, so that gradients of a sound step differ
by a few per cent at most, and the tolerance is several times that.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Policy:
    """Rules for changes of precision.

    Every value is positive; a wrong one is a `ValueError`.
    """

    probe_every: int = 1000
    """Steps between probes: a probe runs a batch in both precisions. The first ones come earlier,
    1, 4, 16, 64 and 256 steps after a change. Where units for half precision make it four times as
    fast as full, a probe costs four steps: of 1,000, 0.4 %."""
    tolerance: float = 0.25
    """Most that gradients of both precisions may differ, by the norm of the full ones."""
    window: int = 64
    """Losses that make the trend."""
    deviations: float = 8.0
    """Distance above the trend, in robust deviations, that is suspect."""
    strikes: int = 3
    """Non-finite losses in half precision, within `window` steps, that end it."""
    pin_after: int = 2
    """Overflows of a module after which it stays in full precision."""
    least_scale: float = 1.0
    """A loss scale below this has collapsed."""
    hold: int = 50
    """Steps in full precision before half is probed again; doubles with each relapse."""
    most_hold: int = 1600
    """Most steps between such probes."""
    agreements: int = 2
    """Successive probes that must agree before half precision returns."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"Policy: {field.name} is {value}; it must be positive")


FIRST_PROBE, PROBE_GROWTH = 1, 4
"""Steps from a change to the first probe, and the growth of the steps between later ones."""
