"""Groups of ranks, and shards of byte ranges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from harp.collectives.ir import Index, Ints, Ranks


@dataclass(frozen=True, eq=False)
class Groups:
    """All ranks, divided into groups of equal size: ``members[group, position]`` is a rank."""

    members: Ranks

    @property
    def size(self) -> int:
        """Ranks in a group."""
        return int(self.members.shape[1])

    @cached_property
    def numbers(self) -> Ranks:
        """The number of its group for every member, in the order of ``members.ravel()``."""
        return np.repeat(np.arange(len(self.members), dtype=np.int32), self.size)

    @cached_property
    def _place(self) -> Ranks:
        place = np.empty(self.members.size, np.int32)
        place[self.members.ravel()] = np.arange(self.members.size, dtype=np.int32)
        return place

    def find(self, rank: int) -> tuple[Ints, Ints]:
        """Group and position of ``rank``, as arrays of no dimension, ready to broadcast."""
        group, position = divmod(int(self._place[rank]), self.size)
        return np.array(group), np.array(position)


@dataclass(frozen=True, eq=False)
class Shards:
    """A byte range for each group, cut into ``parts`` shards that differ by one unit at most.

    Shard ``i`` of a range of n units starts at unit ⌊i·n/parts⌋, so a tail that does not divide is
    spread, and no array of boundaries is needed.
    """

    base: Ints
    """First byte of each group's range, shape (groups,)."""
    units: Ints
    """Length of each group's range in units, shape (groups,)."""
    parts: int
    unit_bytes: int

    @classmethod
    def of(cls, nbytes: int, unit_bytes: int, parts: int, groups: int = 1) -> Shards:
        """Give every group the same range, from byte 0."""
        return cls(np.zeros(groups, np.int64), np.full(groups, nbytes // unit_bytes, np.int64),
                   parts, unit_bytes)

    def start(self, group: Index, index: Index) -> Ints:
        """First byte of shard ``index`` (``parts`` gives the end of the range); broadcasts."""
        at = np.asarray(group)
        whole = np.asarray(index, np.int64) * self.units[at] // self.parts
        return np.asarray(self.base[at] + whole * self.unit_bytes)

    def length(self, group: Index, index: Index) -> Ints:
        """Bytes of shard ``index``; broadcasts."""
        return self.start(group, np.asarray(index) + 1) - self.start(group, index)

    @property
    def range_bytes(self) -> Ints:
        """Bytes of each group's range."""
        return self.units * self.unit_bytes

    def within(self, parts: int) -> Shards:
        """Every shard of group 0 as the range of a group of its own, cut into ``parts``."""
        index = np.arange(self.parts)
        return Shards(self.start(0, index), self.length(0, index) // self.unit_bytes, parts,
                      self.unit_bytes)
