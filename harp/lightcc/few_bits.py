"""An allreduce of float32 in 8, 4 or 2 bits a value, with error feedback.

The vector is divided into a part for each rank. Each rank sends each other one its part in few bits
(`cnet/lightcc/few_bits.h`), adds up in float32 what comes for its own one, in the order of ranks,
and sends the sum to all, in few bits again. All ranks decode the same bytes, so results are
bit-equal. Each sends 2 (n - 1) / n of a message of the whole vector, as a ring does.

What is lost is kept, and added the next time (Seide et al., "1-bit stochastic gradient descent",
Interspeech 2014): by each rank for what it sent, and for the sum by the rank that made it.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from harp._cnet import ffi, lib

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harp.lightcc.group import Group

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

BITS = (8, 4, 2)
CHUNK: int = lib.HARP_BITS_CHUNK
"""Values with a scale in common."""


def message_bytes(elements: int, bits: int) -> int:
    """Return the bytes of a message of so many values."""
    return int(lib.harp_bits_bytes(elements, bits))


def take(values: Floats, error: Floats | None, message: Bytes, bits: int, seed: int = 0) -> None:
    """Write values + error as a message, and leave in ``error`` what it does not say."""
    lib.harp_bits_take(_floats(values), ffi.NULL if error is None else _floats(error), len(values),
                       ffi.from_buffer("uint8_t[]", message), bits, seed)


def add(total: Floats, message: Bytes, bits: int) -> None:
    """Add what a message says."""
    lib.harp_bits_add(_floats(total), len(total), ffi.from_buffer("uint8_t[]", message), bits)


def _floats(values: Floats) -> Any:
    return ffi.from_buffer("float[]", values)


class FewBits:
    """Repeated allreduces of vectors of one size; one of them is under way at a time.

    Args:
        group: the ranks, all of which make one and call it alike.
        elements: of the vector.
        bits: of a value: 8, 4 or 2.
        seed: of rounding by chance; 0: values are rounded to nearest.

    """

    def __init__(self, group: Group, elements: int, bits: int, seed: int = 0) -> None:
        if bits not in BITS:
            raise ValueError(f"bits is {bits}; allowed are {', '.join(map(str, BITS))}")
        self._group, self._bits, self._seed = group, bits, seed
        self.elements = elements
        room = -(-elements // (group.ranks * CHUNK)) * CHUNK
        self._parts = [slice(min(rank * room, elements), min((rank + 1) * room, elements))
                       for rank in range(group.ranks)]
        sizes = [message_bytes(part.stop - part.start, bits) for part in self._parts]
        self._sent = [np.empty(size, np.uint8) for size in sizes]
        self._came = [np.empty(sizes[group.rank], np.uint8) for _ in sizes]
        self._sums = [np.empty(size, np.uint8) for size in sizes]
        self._calls = 0

    def allreduce(self, vector: Floats, error: Floats | None = None, *,
                  average: bool = False) -> Future[None]:
        """Sum or average all ranks' ``vector``; the result replaces it at every rank.

        ``error`` is as long, and zero before the first call.
        """
        if len(vector) != self.elements:
            raise ValueError(f"the vector has {len(vector)} elements, not {self.elements}")
        group = self._group
        for part, message in zip(self._parts, self._sent, strict=True):
            take(vector[part], None if error is None else error[part], message, self._bits,
                 self._next_seed())
        words = (f"allreduce of {self.elements} float32, {'avg' if average else 'sum'}, in "
                 f"{self._bits} bits")
        # The group begins the second call when the first one and its callbacks are over, since both
        # are on memory that it does not know to be apart. If the first fails, so does the second.
        group.exchange(f"{words}, parts", self._sent, self._came).add_done_callback(
            lambda first: self._add_up(first, vector, error, average=average))
        second = group.exchange(f"{words}, sums", [self._sums[group.rank]] * group.ranks,
                                self._sums)
        over: Future[None] = Future()
        second.add_done_callback(lambda second: self._decode(vector, second, over))
        return over

    def _add_up(self, call: Future[None], vector: Floats, error: Floats | None, *,
                average: bool) -> None:
        """Make the sum of this rank's part from all ranks' messages, in few bits."""
        if call.exception() is not None:
            return
        ranks, own = self._group.ranks, self._parts[self._group.rank]
        total = vector[own]
        total[:] = 0
        for message in self._came:
            add(total, message, self._bits)
        if average:
            total /= np.float32(ranks)
        lost = None if error is None else np.zeros_like(total)
        take(total, lost, self._sums[self._group.rank], self._bits, self._next_seed())
        if error is not None and lost is not None:
            error[own] += lost * np.float32(ranks if average else 1)

    def _decode(self, vector: Floats, call: Future[None], over: Future[None]) -> None:
        if (why := call.exception()) is not None:
            over.set_exception(why)
            return
        vector[:] = 0
        for part, message in zip(self._parts, self._sums, strict=True):
            add(vector[part], message, self._bits)
        over.set_result(None)

    def _next_seed(self) -> int:
        """Give another seed for each message of each rank and call, the same in every run."""
        if not self._seed:
            return 0
        self._calls += 1
        return (self._seed * 0x9E3779B1 + self._calls * self._group.ranks
                + self._group.rank) % 0xFFFFFFFF + 1
