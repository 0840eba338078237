"""Tokens that DiLoCo takes to the loss of averaging in each step, by published losses.

Charles et al. 2025 (arXiv 2503.09799, tables 4 and 5) trained decoders of text by averaging in each
step and by DiLoCo with 2, 4 and 8 islands that meet every 30 steps, each tuned, on 20 tokens a
parameter. `excess` interpolates their losses by the logarithms of parameters and islands; outside
of what they trained it knows nothing. On up to 16 times as many tokens (section 5.2) curves of both
stay parallel, so the relative difference of losses is assumed to stay the same.

How many more tokens take that away is Hoffmann's law as Besiroglu et al. 2024 fitted it (arXiv
2404.10102): a loss falls with tokens D as B / D ** beta. It was fitted to other text.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from harp.lightcc.outer_policy import OuterPolicy
    from sim.workloads.model import Model

EVERY = 30
ROUNDED = 1.05
"""Sizes have names of two digits: the one called 2.4B has 2.44 billion parameters."""
SIZES = (35e6, 90e6, 180e6, 335e6, 550e6, 1.3e9, 2.4e9, 4e9, 10e9)
AVERAGED = (3.485, 3.167, 2.950, 2.784, 2.653, 2.460, 2.326, 2.224, 2.090)
"""Losses of averaging in each step, by parameters."""
DILOCO = {2: (3.508, 3.182, 2.957, 2.788, 2.657, 2.464, 2.323, 2.220, 2.086),
          4: (3.554, 3.213, 2.981, 2.808, 2.673, 2.472, 2.332, 2.230, 2.096),
          8: (3.621, 3.265, 3.019, 2.841, 2.698, 2.493, 2.351)}
"""Losses of DiLoCo, by islands; eight were trained on up to 2.4 billion parameters."""
TOKENS = 20
"""Tokens a parameter."""
MOST = 16
"""Most times as many on which both were compared."""
B, BETA = 2085.43, 0.3658


def excess(policy: OuterPolicy, model: Model, islands: int) -> float | None:
    """Relative difference to the loss of averaging after the same tokens; None if unpublished."""
    shape = model.shape
    if (policy.method != "diloco" or policy.every != EVERY or policy.bits != 32 or shape is None
            or shape.head == "none" or shape.encoder or shape.experts is not None
            or not min(DILOCO) <= islands <= max(DILOCO)):
        return None
    low = max(count for count in DILOCO if count <= islands)
    high = min(count for count in DILOCO if count >= islands)
    size = model.parameters
    if not SIZES[0] / ROUNDED <= size <= SIZES[len(DILOCO[high]) - 1] * ROUNDED:
        return None
    shares = [_at(size, DILOCO[count]) / _at(size, AVERAGED) - 1 for count in (low, high)]
    return float(np.interp(math.log(islands), np.log([low, high]), shares))


def times_the_tokens(policy: OuterPolicy, model: Model, islands: int,
                     tokens: float) -> float | None:
    """Tokens to the loss that averaging has after ``tokens``, over these; None if unknown."""
    share = excess(policy, model, islands)
    if share is None or not 1 <= tokens / (TOKENS * model.parameters) <= MOST:
        return None
    left = 1 - share * _at(model.parameters, AVERAGED) * tokens ** BETA / B
    return left ** (-1 / BETA) if left > 0 else math.inf


def _at(size: float, losses: tuple[float, ...]) -> float:
    return float(np.interp(math.log(size), np.log(SIZES[:len(losses)]), losses))
