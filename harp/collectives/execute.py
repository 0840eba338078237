"""Execute one rank's part of a plan: real bytes, over a channel to each of its peers.

The order of pieces
-------------------
A message is sent in pieces of at most a slot (`harp.collectives.window`). A piece is sent when

1. all that its bytes depend on is done: what earlier steps receive into them or make of them;
2. the pieces before it on the same channel have left;
3. the channel has a free slot.

A piece is taken out of its slot when the pieces before it have been, and when nothing still has to
read or change the bytes that it replaces. So in a pipeline step k + 1's send waits for step k's
receive and for nothing else. In lock step (`RankStep.waits`) a rank begins a step when it has done
all before it. The plan's steps are an order in which all of it can be done, so no number of slots
is too small.

Channels
--------
`Channel` is all that this module asks of a network. `harp.collectives.channels` has one in memory,
`harp.net.channel` one over HARP connections.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from harp.collectives.ir import Buffer, Op
from harp.collectives.window import NCCL_WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import DTypeLike, NDArray

    from harp.collectives.collective_plan import Plan
    from harp.collectives.ir import LocalWork, Message
    from harp.collectives.window import Window

    Bytes = NDArray[np.uint8]

MOST_OPEN = 512
"""Most open pieces of a rank: it reads its program no further while it has this many."""


class Channel(Protocol):
    """Pieces to and from one peer, each whole and in the order in which they were sent."""

    async def send(self, piece: Bytes) -> None:
        """Take a piece; returns when it is in a slot, so that its bytes may change."""

    async def receive(self, nbytes: int) -> Bytes:
        """Give the next piece, of ``nbytes`` bytes, to be read until the next one is asked for.

        Then its slot is free.
        """


class Execution:
    """One rank of one run of a plan.

    Args:
        plan: what to run.
        rank: which part of it.
        dtype: of the elements, which have ``plan.unit_bytes``.
        channels: gives the channel to a peer.
        window: pieces fit in its slots.
        share: (i, n): move the i-th of n even parts of every message, for plans that n channels
            run side by side.
    """

    def __init__(self, plan: Plan, rank: int, dtype: DTypeLike,
                 channels: Callable[[int], Channel], window: Window = NCCL_WINDOW,
                 share: tuple[int, int] = (0, 1)) -> None:
        self.plan, self.rank, self.dtype = plan, rank, np.dtype(dtype)
        if self.dtype.itemsize != plan.unit_bytes:
            raise ValueError(f"elements of {self.dtype} have {self.dtype.itemsize} B, "
                             f"those of the plan {plan.unit_bytes} B")
        self.buffers: dict[Buffer, Bytes] = {
            buffer: np.zeros(size, np.uint8) for buffer, size in plan.buffers.items()}
        self._channels, self._share = channels, share
        self._piece_bytes = max(window.slot_bytes // plan.unit_bytes, 1) * plan.unit_bytes
        self._open: list[_Piece] = []
        self._last: dict[tuple[int, bool], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run the program to its end; raises what a channel raises."""
        try:
            for step in self.plan.rank_steps(self.rank):
                if step.waits:
                    await self._settle(0)
                for work in step.local:
                    do_local_work(work, self.buffers, self.dtype, self.plan.bits)
                for message in step.sends:
                    self._begin(message, sends=True)
                for message in step.receives:
                    self._begin(message, sends=False)
                await self._settle(MOST_OPEN)
            await self._settle(0)
        finally:
            for piece in self._open:
                piece.task.cancel()

    async def _settle(self, most: int) -> None:
        """Wait until at most ``most`` pieces are open."""
        while len(self._open) > most:
            await asyncio.wait([piece.task for piece in self._open],
                               return_when=asyncio.FIRST_COMPLETED)
            for piece in self._open:
                if piece.task.done():
                    piece.task.result()
            self._open = [piece for piece in self._open if not piece.task.done()]

    def _begin(self, message: Message, *, sends: bool) -> None:
        first, last = self._own_share(message.length)
        for offset in range(first, last, self._piece_bytes):
            length = min(self._piece_bytes, last - offset)
            buffer, start, peer = ((message.src_buffer, message.src_offset, message.dst) if sends
                                   else (message.dst_buffer, message.dst_offset, message.src))
            start += offset
            before = [piece.task for piece in self._open
                      if piece.touches(buffer, start, start + length, writes=not sends)]
            if (peer, sends) in self._last:
                before.append(self._last[peer, sends])
            data = self.buffers[Buffer(buffer)][start:start + length]
            task = asyncio.ensure_future(self._send(before, peer, data) if sends
                                         else self._receive(before, data, message))
            self._last[peer, sends] = task
            self._open.append(_Piece(buffer, start, start + length, not sends, task))

    def _own_share(self, length: int) -> tuple[int, int]:
        """First and last byte of this channel's part of a message."""
        unit, (part, parts) = self.plan.unit_bytes, self._share
        first, last = (length // unit * end // parts * unit for end in (part, part + 1))
        return first, length if part + 1 == parts else last

    async def _send(self, before: list[asyncio.Task[None]], peer: int, data: Bytes) -> None:
        await _all_done(before)
        await self._channels(peer).send(data)

    async def _receive(self, before: list[asyncio.Task[None]], data: Bytes,
                       message: Message) -> None:
        await _all_done(before)
        came = await self._channels(message.src).receive(len(data))
        if message.op == Op.REDUCE:
            data.view(self.dtype)[:] += came.view(self.dtype)
        else:
            data[:] = came


@dataclass(frozen=True, eq=False)
class _Piece:
    """A piece that is not through yet, and the bytes that it reads or writes."""

    buffer: int
    start: int
    end: int
    writes: bool
    task: asyncio.Task[None]

    def touches(self, buffer: int, start: int, end: int, *, writes: bool) -> bool:
        """Whether a reader or writer of these bytes must come after this piece."""
        return (self.buffer == buffer and self.start < end and start < self.end
                and (writes or self.writes))


async def _all_done(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        await asyncio.shield(task)


def do_local_work(work: LocalWork, buffers: Mapping[Buffer, Bytes], dtype: np.dtype[Any],
                  bits: int = 0) -> None:
    """Do what a rank does by itself: copy, select the largest, encode, add up pairs or codes."""
    source = _part(buffers, work.src_buffer, work.src_offset, work.src_length)
    target = _part(buffers, work.dst_buffer, work.dst_offset, work.dst_length)
    if work.op == Op.SELECT:
        dense, pairs = source.view(dtype), target.view(pair_type(dtype))
        pairs["index"] = largest(dense, len(pairs))
        pairs["value"] = dense[pairs["index"]]
    elif work.op == Op.SCATTER_ADD:
        pairs, dense = source.view(pair_type(dtype)), target.view(dtype)
        dense[:] = 0
        np.add.at(dense, pairs["index"], pairs["value"])
    elif work.op in (Op.ENCODE, Op.DECODE):
        if dtype != np.float32:
            raise ValueError(f"elements of {dtype} have no few bits; allowed is float32")
        _code(work, source, target, bits)
    else:
        target[:] = source


def _code(work: LocalWork, source: Bytes, target: Bytes, bits: int) -> None:
    from harp._cnet import ffi, lib  # built where it is needed: plans alone do without

    if work.op == Op.ENCODE:
        lib.harp_bits_take(ffi.from_buffer("float[]", source), ffi.NULL, len(source) // 4,
                           ffi.from_buffer("uint8_t[]", target), bits, 0)
        return
    target[:] = 0
    for message in np.split(source, work.slots):
        lib.harp_bits_add(ffi.from_buffer("float[]", target), len(target) // 4,
                          ffi.from_buffer("uint8_t[]", message), bits)


def _part(buffers: Mapping[Buffer, Bytes], buffer: int, offset: int, length: int) -> Bytes:
    return buffers[Buffer(buffer)][offset:offset + length]


def pair_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Layout of a (value, index) pair in PAIRS."""
    return np.dtype([("value", dtype), ("index", "<i4")])


def largest(values: NDArray[Any], kept: int) -> NDArray[np.int64]:
    """Positions of the ``kept`` largest magnitudes, the first of equals."""
    wide = values.astype(np.int64) if values.dtype.kind in "iu" else values
    return np.argsort(-np.abs(wide), kind="stable")[:kept]
