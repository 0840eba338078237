"""Margins of intervals: what clusters differ by beside all that draws know.

P10 to P90 of draws hold the truth only if all that differs between clusters is a parameter. It is
not: of published rows of sources that nothing was fitted to, draws hold far fewer. So an interval
is widened by what rows of other sources miss it by (conformalised quantile regression: Romano,
Patterson and Candes, NeurIPS 2019, with each source as one group): the logarithm
of P10 over a row below it counts for the lower end, that of a row over P90 for the upper end, and a
margin is their 92 % quantile, all sources alike. Negative margins are taken as none.

``python -m sim.validate published`` derives them from the rows of docs/results/validation.md, and
says whether these are stale. What that page says of coverage is never of these margins: there each
source's rows are held against margins of all other sources.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Margin(NamedTuple):
    """Logarithms that move both ends of an interval of a speed outwards."""

    below: float
    above: float

    def widen(self, low: float, high: float) -> tuple[float, float]:
        """Ends of an interval of a speed, each moved outwards."""
        return low * math.exp(-self.below), high * math.exp(self.above)


TRAINING = Margin(0.094, 0.064)
"""Of samples/s of training steps."""
COLLECTIVES = Margin(0.331, 0.022)
"""Of bandwidths of collectives; of times the ends swap."""
