"""A sampler that remembers the samples of an epoch that are done, for any number of ranks."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import torch

from harp.lightcc.horovod import world

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class ElasticSampler(torch.utils.data.Sampler):
    """Gives each rank its share of what is left of an epoch.

    Args:
        dataset: what is sampled; its length counts.
        shuffle: in an order that follows from ``seed`` and the epoch.
        seed: the same at all ranks.

    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, with all of its samples."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Know that a batch of this rank is done."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Sequence[int]) -> None:
        """Know that samples are done."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Give the samples of a batch of this rank."""
        return self.indices[batch_idx * batch_size:(batch_idx + 1) * batch_size]

    def reset(self) -> None:
        """Share what is left among the ranks there are now."""
        known = world.is_initialized()
        self.rank = world.current().rank if known else 0
        self.num_replicas = world.current().size if known else 1
        self.remaining_indices = [index for index in range(len(self.dataset))
                                  if index not in self.processed_indices]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.indices = self._own()

    def _own(self) -> list[int]:
        order = list(self.remaining_indices)
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        if order:  # all ranks have as many: the first ones come again
            order += (order * self.num_replicas)[:self.total_size - len(order)]
        return order[self.rank::self.num_replicas]

    def state_dict(self) -> dict[str, Any]:
        """Give the epoch and what is done of it."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.epoch = state["epoch"]
        self.processed_indices = set(state["processed_indices"])
        self.reset()

    def merge(self, states: Sequence[dict[str, Any]]) -> None:
        """Know what all ranks have done, of the epoch of the first one."""
        self.load_state_dict({"epoch": states[0]["epoch"], "processed_indices": {
            index for state in states if state["epoch"] == states[0]["epoch"]
            for index in state["processed_indices"]}})

    def __iter__(self) -> Iterator[int]:
        """Give this rank's samples."""
        return iter(self.indices)

    def __len__(self) -> int:
        """Count this rank's samples."""
        return len(self.indices)
