"""Generate a stream of clicks: ids by Zipf's law, some new each day, and the clicks they cause.

Each feature has a fixed number of ids; every day a part of them is replaced by new ones. An id
has an effect on clicks of its own, and pairs of the first two features have one together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

FEATURES = ("user", "item", "query")


@dataclass
class Clicks:
    seed: int = 0
    alive: int = 10_000
    """Ids of a feature that are alive at once."""
    fresh: float = 0.5
    """Of these, replaced each day."""
    per_day: int = 40_000
    exponent: float = 1.05

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        shape = (len(FEATURES), self.alive)
        self.ids = np.zeros(shape, dtype=np.int64)
        self.effects, self.vectors = np.zeros(shape), np.zeros((*shape, 2))
        self.replace(np.ones(shape, dtype=bool))
        shares = np.arange(1, self.alive + 1) ** -self.exponent
        self.shares = shares / shares.sum()

    def replace(self, which: np.ndarray) -> None:
        """Let new ids take the place of old ones."""
        n = int(which.sum())
        self.ids[which] = self.random.integers(-2 ** 63, 2 ** 63 - 1, n)
        self.effects[which] = self.random.normal(0, 2, n)
        self.vectors[which] = self.random.normal(0, 0.7, (n, 2))

    def day(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return the ids of a day by feature, and the clicks."""
        chosen = [self.random.choice(self.alive, self.per_day, p=self.shares) for _ in FEATURES]
        logit = sum(self.effects[feature][row] for feature, row in enumerate(chosen)) - 1.0
        logit += (self.vectors[0][chosen[0]] * self.vectors[1][chosen[1]]).sum(1)
        clicks = self.random.random(self.per_day) < 1 / (1 + np.exp(-logit))
        ids = {name: torch.from_numpy(self.ids[feature][row]).reshape(-1, 1)
               for feature, (name, row) in enumerate(zip(FEATURES, chosen, strict=True))}
        self.replace(self.random.random(self.ids.shape) < self.fresh)
        return ids, torch.from_numpy(clicks).float()


def batches(ids: dict[str, torch.Tensor], clicks: torch.Tensor, size: int):
    """Cut a day into batches."""
    for at in range(0, len(clicks), size):
        yield ({name: given[at:at + size] for name, given in ids.items()}, clicks[at:at + size])


def auc(scores: torch.Tensor, clicks: torch.Tensor) -> float:
    """Return the share of pairs of a click and none that the scores order rightly."""
    order = scores.argsort()
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    hits = int(clicks.sum())
    above = ranks[clicks > 0].sum().item() - hits * (hits + 1) / 2
    return above / (hits * (len(scores) - hits))
