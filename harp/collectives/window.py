"""The window of a pipeline: how messages are cut into pieces, and how many may be under way.

An edge has a fixed number of *slots* in its receiver's memory. A message travels in pieces of at
most a slot. A piece may be sent as soon as a slot is free, whether its receiver has come to that
step or not; the slot is free again when the receiver has passed the piece on, or has used it if it
passes nothing on. Around a ring everybody sends before it receives, so a message must not fill the
window: a longer one goes around in several *loops*, each of which takes every step with a part of
every shard, and follows on the one before it.

NCCL has 8 slots (NCCL_STEPS) of 512 KiB (NCCL_BUFFSIZE of 4 MiB over them), and lets a message of a
ring take half of them (ALLREDUCE_CHUNKSTEPS); source: NVIDIA/nccl 2.30, src/include/device.h and
src/include/collectives.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from harp.collectives.ir import Phase


class Cut(NamedTuple):
    """How a pipeline's edges carry their bytes: equal pieces, one after the other."""

    pieces: int
    """Pieces on each edge over the whole phase."""
    lag: int
    """A piece needs the one that came so many pieces earlier on the edges that feed it."""


@dataclass(frozen=True)
class Window:
    """Slots of an edge, of equal size."""

    slots: int = 8
    slot_bytes: int = 512 << 10

    def cut(self, phase: Phase) -> Cut:
        """Cut the messages of a phase; those of a lock-step phase travel whole."""
        if phase.feeds is None or not len(phase.src):
            return Cut(1, 0)
        message = -(-int(phase.bytes_per_edge.max()) // phase.steps)
        in_all = max(1, -(-message // self.slot_bytes))
        if not phase.feeds.lag:
            return Cut(phase.steps * in_all, 0)
        loops = -(-in_all // (self.slots // 2))
        pieces = max(1, -(-message // (loops * self.slot_bytes)))
        return Cut(phase.steps * loops * pieces, pieces)


NCCL_WINDOW = Window()
