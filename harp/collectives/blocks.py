"""Blocks of an all-to-all with counts: bytes from each rank to each rank.

A block is a range of bytes that one rank sends to some ranks, often to one. The blocks of a rank
lie in its memory one behind the other, in the order of the rows; so does at a rank what comes to
it. Without copies to several ranks the rows are torch's ``all_to_all_single``: of source 0 to
destination 0, 1, …, then of source 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from harp.collectives.ir import Bools, Ints


@dataclass(frozen=True, eq=False)
class Blocks:
    """Rows of blocks, sorted by source; ``to[block, rank]`` is true where a rank gets a copy."""

    src: Ints
    to: Bools
    nbytes: Ints

    @classmethod
    def of_counts(cls, counts: ArrayLike, unit_bytes: int = 1) -> Blocks:
        """Take a matrix: ``counts[i, j]`` units go from rank i to rank j.

        Raises:
            ValueError: it is not a square matrix of counts.

        """
        table = np.asarray(counts, np.int64)
        if table.ndim != 2 or table.shape[0] != table.shape[1]:
            raise ValueError(f"counts have the shape {table.shape}; allowed is a row and a column "
                             "for each rank")
        if (table < 0).any():
            i, j = np.argwhere(table < 0)[0]
            raise ValueError(f"the count from rank {i} to rank {j} is {table[i, j]}; allowed is 0 "
                             "or more")
        src, dst = np.nonzero(table)
        return cls(src, np.arange(len(table)) == dst[:, None], table[src, dst] * unit_bytes)

    @property
    def ranks(self) -> int:
        """Ranks that take part."""
        return int(self.to.shape[1])

    @cached_property
    def at_source(self) -> Ints:
        """Offset of each block in its source's memory."""
        ends = np.cumsum(self.nbytes)
        before = np.searchsorted(self.src, self.src)
        return np.asarray(ends - self.nbytes - np.append(0, ends)[before])

    @cached_property
    def at_target(self) -> Ints:
        """Offset of each of `pairs` at its rank."""
        block, rank = self.pairs
        order = np.argsort(rank, kind="stable")
        nbytes, of_rank = self.nbytes[block[order]], rank[order]
        ends = np.cumsum(nbytes)
        before = np.searchsorted(of_rank, of_rank)
        found = np.empty_like(ends)
        found[order] = ends - nbytes - np.append(0, ends)[before]
        return found

    @cached_property
    def sent_bytes(self) -> Ints:
        """Bytes of each rank's blocks."""
        return np.bincount(self.src, self.nbytes, self.ranks).astype(np.int64)

    @cached_property
    def came_bytes(self) -> Ints:
        """Bytes of what comes to each rank."""
        block, rank = self.pairs
        return np.bincount(rank, self.nbytes[block], self.ranks).astype(np.int64)

    @cached_property
    def pairs(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Each copy that has any bytes: its block, and the rank that it is for, in order."""
        block, rank = np.nonzero(self.to & (self.nbytes > 0)[:, None])
        return block, rank
