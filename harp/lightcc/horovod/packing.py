"""Packing of rows of tensors: by tensor, or by rank where one call sends several."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]


def split(data: Bytes, sizes: Iterable[int]) -> list[Bytes]:
    """Cut memory into parts of the given sizes, which fill it."""
    ends = np.cumsum([0, *sizes])
    row = len(data) // int(ends[-1]) if ends[-1] else 0
    return [data[row * start:row * end] for start, end in pairwise(ends)]


def shares(rows: int, ranks: int) -> list[int]:
    """Rows of each rank; the first ones have one more if need be."""
    even, more = divmod(rows, ranks)
    return [even + (rank < more) for rank in range(ranks)]


def nbytes(parts: Iterable[Bytes]) -> int:
    """Count the bytes of parts."""
    return sum(map(len, parts))


def pack(parts: Sequence[Bytes], into: Bytes) -> None:
    """Put parts one behind the other, and zeros where there is room left."""
    at = 0
    for part in parts:
        into[at:at + len(part)] = part
        at += len(part)
    into[at:] = 0


def unpack(data: Bytes, parts: Iterable[Bytes]) -> None:
    """Take parts that lie one behind the other to their places."""
    at = 0
    for part in parts:
        part[:] = data[at:at + len(part)]
        at += len(part)


class Buffers:
    """Memory of calls that send several tensors; it is kept for the next ones.

    Args:
        usual_bytes: what most calls need at most.

    """

    def __init__(self, usual_bytes: int) -> None:
        self._usual_bytes = usual_bytes
        self._free: list[Bytes] = []

    def take(self, nbytes: int) -> Bytes:
        """Return a buffer of at least ``nbytes``."""
        for at, buffer in enumerate(self._free):
            if len(buffer) >= nbytes:
                return self._free.pop(at)
        return np.empty(max(nbytes, min(self._usual_bytes, 2 * nbytes)), np.uint8)

    def give_back(self, buffer: Bytes) -> None:
        """Let it be taken again."""
        self._free.append(buffer)
