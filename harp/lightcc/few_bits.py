"""An allreduce of float32 in 8, 4 or 2 bits a value, with error feedback.

It carries out the plans of `harp.collectives.few_bits_plan`, by the same parts. Ranks lie on hosts,
``intra`` on each. A vector is divided into a shard for each rank of a host, and a shard into a part
for each host:

1. within a host each rank gets its shard from the others, as float32, and adds it up;
2. ranks with the same shard send each other their parts of it in few bits
   (`cnet/lightcc/few_bits.h`) and add up, in float32, what comes for their own part;
3. they send the sums to each other, in few bits again;
4. within a host each rank sends the sums of its shard to the others.

So a host sends 2 (h - 1) / h of a message of the whole vector to others, as a ring over h hosts
does. With ``intra`` 1 only steps 2 and 3 are left. All ranks decode the same bytes, and sums are
made in the order of ranks: results are bit-equal.

The rounding error is kept, and added the next time (Seide et al., "1-bit stochastic gradient
descent", Interspeech 2014): by each rank for what it sent, and for the sum by the rank that made
it.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from harp._cnet import ffi, lib
from harp.collectives.few_bits_plan import BITS, CHUNK, Parts, message_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from harp.lightcc.group import Group

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

__all__ = ["BITS", "CHUNK", "FewBits", "add", "message_bytes", "take"]


def take(values: Floats, error: Floats | None, message: Bytes, bits: int, seed: int = 0) -> None:
    """Write values + error as a message, and leave in ``error`` what it does not say."""
    lib.harp_bits_take(_floats(values), ffi.NULL if error is None else _floats(error), len(values),
                       ffi.from_buffer("uint8_t[]", message), bits, seed)


def add(total: Floats, message: Bytes, bits: int) -> None:
    """Add what a message says."""
    lib.harp_bits_add(_floats(total), len(total), ffi.from_buffer("uint8_t[]", message), bits)


def _floats(values: Floats) -> Any:
    return ffi.from_buffer("float[]", values)


def follow(group: Group, call: Future[None] | None, what: str,
           step: Callable[[], None]) -> Future[None]:
    """Take a step after a call, where that does not fail; what is over when both are.

    If the step fails, so does the group, so that no rank takes an unfinished sum for a sum. Without
    a call the step is taken at once.
    """
    over: Future[None] = Future()

    def take_step(call: Future[None] | None) -> None:
        why = None if call is None else call.exception()
        if why is None:
            why = group.attempt(what, step)
        if why is None:
            over.set_result(None)
        else:
            over.set_exception(why)
    if call is None:
        take_step(None)
    else:
        call.add_done_callback(take_step)
    return over


class FewBits:
    """Repeated allreduces of vectors of one size; one of them is under way at a time.

    Args:
        group: its ranks all make one and call it alike.
        elements: of the vector.
        bits: of a value: 8, 4 or 2.
        seed: of rounding by chance; 0: values are rounded to nearest.
        intra: ranks of a host, which are neighbours; 1: each rank is a host.
        among: the ranks whose vectors are summed, this one among them; all if not given. Others
            call at the same time, for sums of their own.
        call: the call in words, for people whose ranks do not agree.

    """

    def __init__(self, group: Group, elements: int, bits: int, seed: int = 0,
                 intra: int = 1, among: Sequence[int] | None = None,
                 call: str = "allreduce") -> None:
        members = tuple(range(group.ranks)) if among is None else tuple(among)
        if bits not in BITS:
            raise ValueError(f"bits is {bits}; allowed are {', '.join(map(str, BITS))}")
        if intra < 1 or len(members) % intra:
            raise ValueError(f"intra is {intra}; allowed is a divisor of the {len(members)} ranks")
        self._group, self._bits, self._seed, self._intra = group, bits, seed, intra
        self.elements, self._call = elements, call
        self._ranks = len(members)
        self._at = {rank: divmod(place, intra) for place, rank in enumerate(members)}
        """Host, and place on it, of each rank that takes part."""
        self._host, self._place = self._at[group.rank]
        hosts = len(members) // intra
        cut = Parts(elements, hosts, intra, bits)
        self._parts = [[slice(int(cut.start(shard, host)), int(cut.start(shard, host + 1)))
                        for host in range(hosts)] for shard in range(intra)]
        """Of the vector, by shard and host."""
        self._shards = [slice(parts[0].start, parts[-1].stop) for parts in self._parts]
        nothing = np.empty(0, np.uint8)
        self.own = self._shards[self._place]
        """The elements that this rank encodes, and for which it keeps an error."""
        self._within = [np.empty(4 * (self.own.stop - self.own.start), np.uint8)
                        if self._is_here(rank) else nothing for rank in range(group.ranks)]
        """Other ranks' float32 of this rank's shard."""
        sizes = [[int(cut.message(shard, host)) for host in range(hosts)]
                 for shard in range(intra)]
        self._sent = [np.empty(size, np.uint8) for size in sizes[self._place]]
        self._came = [np.empty(sizes[self._place][self._host], np.uint8) for _ in range(hosts)]
        self._sums = [np.empty(sum(row), np.uint8) for row in sizes]
        """By shard: the sums of its parts, one behind the other."""
        self._ends = [np.cumsum([0, *row]) for row in sizes]
        self._rooms = [*self._within, *self._sent, *self._came, *self._sums]
        self._calls = 0

    def _is_here(self, rank: int) -> bool:
        return rank in self._at and self._at[rank][0] == self._host

    def allreduce(self, vector: Floats, error: Floats | None = None, *,
                  average: bool = False) -> Future[None]:
        """Sum or average all ranks' ``vector``; the result replaces it at every rank.

        ``error`` is as long as `own` says, and zero before the first call.
        """
        kept = self.own.stop - self.own.start
        if len(vector) != self.elements:
            raise ValueError(f"the vector has {len(vector)} elements, not {self.elements}")
        if error is not None and len(error) != kept:
            raise ValueError(f"the error has {len(error)} elements, not {kept}")
        words = (f"{self._call} of {self.elements} float32, {'avg' if average else 'sum'}, in "
                 f"{self._bits} bits, {self._intra} ranks a host")
        # All exchanges name all the memory, so the group begins each when the one before it and its
        # callbacks are over. If one fails, so do those behind it. Another vector's exchange, with
        # rooms of its own, begins as soon as the last one of this has: its messages are sent
        # meanwhile, and while the sums are decoded.
        data = [vector.view(np.uint8), *self._rooms]
        if error is not None:
            data.append(error.view(np.uint8))
        first = None
        if self._intra > 1:
            first = self._within_host(f"{words}, shards", [
                vector[shard].view(np.uint8) for shard in self._shards], self._within, data)
        follow(self._group, first, "encode its shard", lambda: self._encode(vector, error))
        follow(self._group, self._between_hosts(f"{words}, parts", self._sent, self._came, data),
               "add up its part", lambda: self._add_up(vector, error, average=average))
        sums = [self._sum_of(self._place, host) for host in range(len(self._sent))]
        last = self._between_hosts(f"{words}, sums", [sums[self._host]] * len(sums), sums,
                                   data)
        if self._intra > 1:
            rows = [self._sums[self._at[rank][1]] if self._is_here(rank) else self._sums[0][:0]
                    for rank in range(self._group.ranks)]
            last = self._within_host(f"{words}, all sums", [self._sums[self._place]] * self._intra,
                                     rows, data)
        return follow(self._group, last, "decode sums", lambda: self._decode(vector))

    def _within_host(self, words: str, outs: list[Bytes], ins: list[Bytes],
                     data: list[Bytes]) -> Future[None]:
        """Send ``outs`` to the ranks of this host, in order; ``ins`` are of all ranks."""
        nothing = outs[0][:0]
        return self._group.exchange(words, [
            outs[self._at[rank][1]] if self._is_here(rank) else nothing
            for rank in range(self._group.ranks)], ins, data)

    def _between_hosts(self, words: str, outs: list[Bytes], ins: list[Bytes],
                       data: list[Bytes]) -> Future[None]:
        """Send to the ranks with this rank's shard, a host each."""
        nothing = outs[0][:0]

        def of_all(rows: list[Bytes]) -> list[Bytes]:
            like = {rank: host for rank, (host, place) in self._at.items() if place == self._place}
            return [rows[like[rank]] if rank in like else nothing
                    for rank in range(self._group.ranks)]
        return self._group.exchange(words, of_all(outs), of_all(ins), data)

    def _sum_of(self, shard: int, host: int) -> Bytes:
        first, last = self._ends[shard][host:host + 2]
        return self._sums[shard][first:last]

    def _encode(self, vector: Floats, error: Floats | None) -> None:
        """Write this rank's shard, the sum over its host, in few bits."""
        if self._intra > 1:
            total = vector[self._shards[self._place]]
            total[:] = 0
            for row in self._within:  # those of this host, in the order of ranks
                if len(row):
                    total += row.view(np.float32)
        for part, message in zip(self._parts[self._place], self._sent, strict=True):
            take(vector[part], None if error is None else error[self._of_own(part)], message,
                 self._bits, self._next_seed())

    def _add_up(self, vector: Floats, error: Floats | None, *, average: bool) -> None:
        """Make the sum of this rank's part from all hosts' messages, in few bits."""
        ranks, own = self._ranks, self._parts[self._place][self._host]
        total = vector[own]
        total[:] = 0
        for message in self._came:
            add(total, message, self._bits)
        if average:
            total /= np.float32(ranks)
        lost = None if error is None else np.zeros_like(total)
        take(total, lost, self._sum_of(self._place, self._host), self._bits, self._next_seed())
        if error is not None and lost is not None:
            error[self._of_own(own)] += lost * np.float32(ranks if average else 1)

    def _of_own(self, part: slice) -> slice:
        """Give a part of the vector as one of the error."""
        return slice(part.start - self.own.start, part.stop - self.own.start)

    def _decode(self, vector: Floats) -> None:
        vector[:] = 0
        for shard, parts in enumerate(self._parts):
            for host, part in enumerate(parts):
                add(vector[part], self._sum_of(shard, host), self._bits)

    def _next_seed(self) -> int:
        """Give another seed for each message of each rank and call, the same in every run."""
        if not self._seed:
            return 0
        self._calls += 1
        return (self._seed * 0x9E3779B1 + self._calls * self._group.ranks
                + self._group.rank) % 0xFFFFFFFF + 1
