"""Scale of the loss in float16, which keeps small gradients from vanishing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harp.angelptm.config import Scaling


class Scaler:
    """The scale of the loss in float16: halved where gradients overflow, doubled after a while.

    The rules are DeepSpeed's DynamicLossScaler: the first ``hysteresis`` - 1 overflows are skipped
    with the scale as it is.
    """

    def __init__(self, how: Scaling) -> None:
        self._how = how
        self.scale = how.initial
        self._left, self._good = how.hysteresis, 0

    def state(self) -> list[float]:
        """Return the state for a checkpoint."""
        return [self.scale, self._left, self._good]

    def restore(self, kept: list[float]) -> None:
        """Go on from what was kept."""
        self.scale, self._left, self._good = kept[0], int(kept[1]), int(kept[2])

    def hear(self, *, overflow: bool) -> bool:
        """Hear of a step; returns whether it overflowed."""
        if self._how.fixed:
            return overflow
        if not overflow:
            self._good += 1
            if self._good % self._how.window == 0:
                self._left = self._how.hysteresis
                self.scale *= 2
            return False
        self._good = 0
        if self._left == 1:
            self.scale = max(self.scale / 2, self._how.least)
        else:
            self._left -= 1
        return True
