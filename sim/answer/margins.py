"""Margins of intervals: what clusters differ by beside all that draws know.

P10 to P90 of draws hold the truth only if all that differs between clusters is a parameter. It is
not: of published rows of sources that nothing was fitted to, draws hold far fewer. So an interval
is widened by what rows of other sources miss it by (conformalised quantile regression: Romano,
Patterson and Candes, NeurIPS 2019, with each source as one group): the logarithm
of P10 over a row below it counts for the lower end, that of a row over P90 for the upper end, and a
margin is their 92 % quantile, all sources alike. Negative margins are taken as none. P50 moves
likewise by the median of the logarithms of published figures over it, so that as many clusters are
slower than P50 as faster: simulations know no misfortune, and most published figures are slower.

``python -m sim.validate published`` derives them from the rows of docs/results/validation.md, and
says whether these are stale. Coverage on that page is never that of these margins: there each
source's rows are held against margins of all other sources.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Margin(NamedTuple):
    """Logarithms that move P10, P50 and P90 of a speed."""

    below: float
    """Of P10, outwards."""
    middle: float
    """Of P50; less than 0 where simulations are faster than what is published."""
    above: float
    """Of P90, outwards."""

    def move(self, low: float, middle: float, high: float) -> tuple[float, float, float]:
        """P10, P50 and P90 of a speed with the margin; P50 stays between the other two."""
        low, high = low * math.exp(-self.below), high * math.exp(self.above)
        return low, min(max(middle * math.exp(self.middle), low), high), high


TRAINING = Margin(0.109, -0.038, 0.042)
"""Of samples/s of training steps."""
COLLECTIVES = Margin(0.331, -0.097, 0.022)
"""Of bandwidths of collectives; of times the ends swap."""
