"""Tokens and the ranks of their experts: from a router's choice to blocks of an all-to-all.

A token is sent to a host once. A block holds a rank's tokens for one host that have experts on the
same ranks there, so a rank has a block for each host and each subset of that host's ranks. Hosts of
more than `MOST_OF_A_HOST` ranks have too many subsets: a token is then in a block for each rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.blocks import Blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harp.collectives.ir import Bools, Ints

MOST_OF_A_HOST = 8


@dataclass(frozen=True)
class Places:
    """Places of experts: ``experts`` of them, evenly on the ranks, with numbered hosts."""

    experts: int
    hosts: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse experts that ranks cannot have evenly."""
        if self.experts % len(self.hosts):
            raise ValueError(f"{self.experts} experts are not as many for each of the "
                             f"{len(self.hosts)} ranks; allowed is a multiple of these")

    @property
    def of_a_rank(self) -> int:
        """Experts of each rank."""
        return self.experts // len(self.hosts)

    @cached_property
    def members(self) -> Bools:
        """The ranks of each kind of block that a rank may have: ``[kind, rank]``."""
        return np.concatenate([subsets for subsets, _ in self._groups])

    @cached_property
    def _groups(self) -> list[tuple[Bools, Ints]]:
        """Of each group of ranks that share blocks: its subsets, and each rank's bit."""
        hosts, ranks = np.array(self.hosts), np.arange(len(self.hosts))
        largest = int(np.bincount(hosts).max())
        groups = ([np.flatnonzero(hosts == host) for host in np.unique(hosts)]
                  if largest <= MOST_OF_A_HOST else list(ranks[:, None]))
        found = []
        for group in groups:
            bits = np.zeros(len(ranks), np.int64)
            bits[group] = 1 << np.arange(len(group))
            masks = np.arange(1, 1 << len(group))
            found.append(((masks[:, None] & bits) > 0, bits))
        return found

    def sort(self, chosen: Ints) -> tuple[Ints, Ints]:
        """Sort tokens by kind of block: the token of each row, and the rows of each kind.

        ``chosen[token, choice]`` is an expert, or -1.
        """
        ranks = len(self.hosts)
        wanted = np.zeros((len(chosen), ranks + 1), bool)
        goal = np.where(chosen < 0, ranks, chosen // self.of_a_rank)
        np.put_along_axis(wanted, goal, values=True, axis=1)
        tokens, kinds, first = [], [], 0
        for subsets, bits in self._groups:
            mask = wanted[:, :ranks] @ bits
            some = np.flatnonzero(mask)
            tokens.append(some)
            kinds.append(mask[some] - 1 + first)
            first += len(subsets)
        kind = np.concatenate(kinds)
        order = np.argsort(kind, kind="stable")
        return np.concatenate(tokens)[order], np.bincount(kind, minlength=first)

    def blocks(self, rows: Ints, row_bytes: int) -> Blocks:
        """Make blocks of ``rows[rank, kind]``."""
        src, kind = np.nonzero(rows)
        return Blocks(src, self.members[kind], rows[src, kind] * row_bytes)


def within_capacity(chosen: Ints, experts: int, capacity: int) -> Ints:
    """Replace by -1 what an expert has no room for; first choices are served first.

    As in GShard (Lepikhin et al., arXiv 2006.16668, algorithm 1), where a group of tokens is what a
    rank has: tokens in their order, all first choices before all second ones.
    """
    served = chosen.T.ravel()
    order = np.argsort(served, kind="stable")
    counts = np.bincount(served, minlength=experts)
    before = np.cumsum(counts) - counts
    place = np.empty_like(served)
    place[order] = np.arange(len(served)) - before[served[order]]
    kept = np.where(place < capacity, served, -1)
    return np.ascontiguousarray(kept.reshape(chosen.shape[::-1]).T)


def chunk_bounds(tokens: int, chunks: int) -> Sequence[tuple[int, int]]:
    """Cut tokens into chunks that differ by one at most."""
    ends = [tokens * i // chunks for i in range(chunks + 1)]
    return list(pairwise(ends))
