"""The window of a pipeline: the pieces of a message, and the number in flight.

An edge has a fixed number of *slots* in its receiver's memory. A message is sent in pieces of at
most a slot. A piece may be sent as soon as a slot is free, whether its receiver has come to that
step or not; the slot is free again when the receiver has passed the piece on, or has used it if it
passes nothing on. Around a ring everybody sends before it receives, so a message must not fill the
window: a longer one goes around in several *loops*, and each loop takes every step with a part of
every shard, and follows on the one before it.

NCCL has 8 slots (NCCL_STEPS) of 512 KiB (NCCL_BUFFSIZE of 4 MiB over them), and lets a message of a
ring take half of them (ALLREDUCE_CHUNKSTEPS). The network gets it as two *slices*, the second one
even where it is empty (ALLREDUCE_SLICESTEPS). Pieces of a tree get smaller if there
would be few of them for its depth, and large collectives use more channels. Source:
NVIDIA/nccl 2.22 and 2.30, src/include/device.h, src/include/collectives.h, src/enqueue.cc.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from harp.collectives.ir import Phase


class Cut(NamedTuple):
    """Pieces of a pipeline's edges: equal in size, one after the other."""

    pieces: int
    """Pieces on each edge over the whole phase."""
    lag: int
    """A piece needs the one this many pieces earlier on the edges that feed it."""
    messages: float = 1.0
    """Messages that the network gets for each piece."""


@dataclass(frozen=True)
class Window:
    """Slots of an edge, of equal size."""

    slots: int = 8
    slot_bytes: int = 512 << 10
    slices: int | None = None
    """Messages that a message of a ring is for the network; one a piece where not given."""
    channel_bytes: int = 1
    """Bytes of a collective for each channel that it uses."""
    most_channels: int = 64
    """Channels that it uses at most (MAXCHANNELS of 2.19 and later where not given)."""
    halves: bool = True
    """Whether pieces of a tree get smaller where there would be few of them for its depth."""

    def channels(self, nbytes: int, most: int) -> int:
        """Number of channels, at most ``most``, that a collective of ``nbytes`` uses."""
        return max(1, min(most, self.most_channels, nbytes // self.channel_bytes))

    def cut(self, phase: Phase, channels: int = 1) -> Cut:
        """Cut what a phase sends on each channel; in lock step messages are sent whole."""
        if phase.feeds is None or not len(phase.src):
            return Cut(1, 0)
        message = -(-int(phase.bytes_per_edge.max()) // (phase.steps * channels))
        if not phase.feeds.lag:
            piece = self._tree_piece(message * phase.steps, int(phase.feeds.level.max()) // 2 + 1)
            return Cut(phase.steps * max(1, -(-message // piece)), 0)
        in_all = max(1, -(-message // self.slot_bytes))
        loops = -(-in_all // (self.slots // 2))
        pieces = max(1, -(-message // (loops * self.slot_bytes)))
        return Cut(phase.steps * loops * pieces, pieces,
                   1.0 if self.slices is None else self.slices / pieces)

    def _tree_piece(self, nbytes: int, depth: int) -> int:
        """Largest piece of a tree of a depth: two trees share what a channel carries."""
        piece = self.slot_bytes
        for hops, least in TREE_PIECES if self.halves else ():
            while 2 * nbytes < piece * depth * hops and piece > least:
                piece //= 2
        return piece


TREE_PIECES = ((8, 128 << 10), (4, 64 << 10), (1, 32 << 10))
"""(pieces per hop, least bytes): with fewer pieces per hop, pieces are halved down to that size."""
NCCL_WINDOW = Window(slices=2, channel_bytes=256 * 64)
"""Window of Simple: 256 threads of 64 bytes in each channel, as where rings carry no more
than 12 GB/s."""
