"""An allreduce of float32 in few bits around a ring, with error feedback.

It carries out the plan `harp.collectives.few_bits_ring_plan`, by the same parts and messages, for
ranks that are a host each. The rank that encoded a value keeps the rounding error, as in
`harp.lightcc.few_bits`: of its own values, and of each sum that it sent on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.few_bits_plan import BITS, Parts
from harp.collectives.few_bits_ring_plan import part_sent
from harp.lightcc.few_bits import add, follow, take

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from harp.lightcc.group import Group

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]


class FewBitsRing:
    """Repeated allreduces of vectors of one size; one of them is under way at a time.

    Args:
        group: its ranks all make one and call it alike; each sends to the next one.
        elements: of the vector.
        bits: of a value: 8, 4 or 2. Values are rounded to nearest.
        among: the ranks of the ring, this one among them; all if not given. Others call at the same
            time, for sums of their own.
        call: the call in words, for people whose ranks do not agree.

    """

    def __init__(self, group: Group, elements: int, bits: int,
                 among: Sequence[int] | None = None, call: str = "allreduce") -> None:
        if bits not in BITS:
            raise ValueError(f"bits is {bits}; allowed are {', '.join(map(str, BITS))}")
        self._group, self._bits, self._call, self.elements = group, bits, call, elements
        self._ring = tuple(range(group.ranks)) if among is None else tuple(among)
        self._place, ranks = self._ring.index(group.rank), len(self._ring)
        cut = Parts(elements, ranks, 1, bits)
        self._parts = [slice(int(cut.start(0, part)), int(cut.start(0, part + 1)))
                       for part in range(ranks)]
        sizes = [int(cut.message(0, part)) for part in range(ranks)]
        self._own = [np.empty(size, np.uint8) for size in sizes]
        """By part: this rank's message, then what it has of the sum."""
        self._came = [np.empty(size, np.uint8) for size in sizes]

    def allreduce(self, vector: Floats, error: Floats | None = None, *,
                  average: bool = False) -> Future[None]:
        """Sum or average all ranks' ``vector``; the result replaces it at every rank.

        ``error`` is as long, and zero before the first call.
        """
        for what, given in (("vector", vector), ("error", error)):
            if given is not None and len(given) != self.elements:
                raise ValueError(f"the {what} has {len(given)} elements, not {self.elements}")
        follow(self._group, None, "encode its vector", lambda: self._encode(vector, error))
        last: Future[None] | None = None
        for hop in range(2 * (len(self._ring) - 1)):
            last = self._begin_hop(hop, vector, error, average=average)
        return follow(self._group, last, "decode sums", lambda: self._decode(vector))

    def _encode(self, vector: Floats, error: Floats | None) -> None:
        for part, message in zip(self._parts, self._own, strict=True):
            take(vector[part], None if error is None else error[part], message, self._bits)

    def _begin_hop(self, hop: int, vector: Floats, error: Floats | None, *,
                   average: bool) -> Future[None]:
        """Queue one; all name all the memory, so that each waits for the one before it."""
        place, ranks = self._place, len(self._ring)
        sent, expected = (int(part_sent(one, hop, ranks)) for one in (place, place - 1))
        adds = hop < ranks - 1
        nothing = np.empty(0, np.uint8)
        outs, ins = [nothing] * self._group.ranks, [nothing] * self._group.ranks
        outs[self._ring[(place + 1) % ranks]] = self._own[sent]
        ins[self._ring[place - 1]] = (self._came if adds else self._own)[expected]
        data = [vector.view(np.uint8), *self._own, *self._came]
        if error is not None:
            data.append(error.view(np.uint8))
        words = (f"{self._call} of {self.elements} float32, {'avg' if average else 'sum'}, in "
                 f"{self._bits} bits around a ring, hop {hop + 1} of {2 * (ranks - 1)}")
        call = self._group.exchange(words, outs, ins, data)
        if adds:
            divisor = ranks if average and hop == ranks - 2 else 1
            return follow(self._group, call, "add up a part",
                          lambda: self._add(expected, vector, error, divisor))
        return call

    def _add(self, part: int, vector: Floats, error: Floats | None, divisor: int) -> None:
        """Add what came to this rank's message of a part, and encode the sum, or the mean."""
        total = vector[self._parts[part]]
        total[:] = 0
        add(total, self._own[part], self._bits)
        add(total, self._came[part], self._bits)
        if divisor > 1:
            total /= np.float32(divisor)
        lost = None if error is None else np.zeros_like(total)
        take(total, lost, self._own[part], self._bits)
        if error is not None and lost is not None:
            error[self._parts[part]] += lost * np.float32(divisor)

    def _decode(self, vector: Floats) -> None:
        vector[:] = 0
        for part, message in zip(self._parts, self._own, strict=True):
            add(vector[part], message, self._bits)
