"""Operations of a job's ranks, and their groups: the common form of all formats of traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from harp.reading import FileError, parse
from sim.schema.input_errors import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

ALL = ("", "0")
"""Names of the group of all ranks."""
MOST_RANKS = 16_384


@dataclass(frozen=True)
class Op:
    """One operation of a rank."""

    name: str
    kind: Literal["compute", "cpu", "collective", "send", "receive", "none"]
    after: tuple[int, ...]
    """Numbers of operations of the same rank that it waits for."""
    seconds: float = 0.0
    """Its time as recorded."""
    flops: float = 0.0
    nbytes: int = 0
    collective: str = ""
    group: str = ""
    peer: int = -1
    tag: int = 0


@dataclass(frozen=True)
class JobTrace:
    """Operations of every rank."""

    ranks: tuple[tuple[Op, ...], ...]
    groups: Mapping[str, tuple[int, ...]]
    dropped: int = 0
    """Control dependencies on nodes that are in no file."""

    def group(self, name: str) -> str:
        """The one name of a group that may have several."""
        return ALL[-1] if name in ALL else name

    def members(self, group: str) -> tuple[int, ...]:
        """Ranks of a group, in their order."""
        return tuple(range(len(self.ranks))) if group in ALL else self.groups[group]


def named_groups(text: object) -> list[tuple[str, list[int]]]:
    """Groups as a node ``process_group:init`` has them; an empty list means all ranks.

    Raises Problem.
    """
    try:
        if not isinstance(text, str):
            raise FileError("they are no text")
        return [(str(group["pg_name"].plain()),
                 [rank.whole(0, MOST_RANKS - 1) for rank in group["ranks"].each()])
                for group in parse(text).each()]
    except FileError as error:
        raise Problem(f"holds no groups: {error}",
                      allowed='[{"pg_name": "0", "ranks": [0, 1]}, ...]') from None
