"""NCCL's protocols, which differ in how they signal arriving data, and their costs.

LL sends 8 bytes of flags with 8 of data, LL128 8 with 120. Both save the synchronisation of Simple,
hence time on each hop inside a host, and pay with bytes. Slots are those of src/include/device.h
(NCCL_LL_LINES_PER_THREAD and the like), latencies those of src/graph/tuning.cc, NVIDIA/nccl 2.19 to
2.23; between hosts, where short messages go by trees, a step of theirs takes 5.0 us by LL and 8.5
by LL128, and by Simple the 9.6 us of stack ``rdma``. The bytes per channel are its threads times
the threshold that a log of NCCL_DEBUG=INFO prints (threadThresholds), which for a ring by LL counts
for each rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from harp.collectives.window import NCCL_WINDOW, Window


@dataclass(frozen=True, eq=False)
class Protocol:
    """A protocol: bytes on the wire for each of data, slots, and latency inside a host."""

    name: str
    wire: float
    window: Window
    inner: float
    """Latency of a hop over NVLink, as a share of Simple's (3.4 us)."""
    saved_s: float = 0.0
    """Seconds that a hop between hosts takes less than Simple's: no fence before data are there."""
    each_rank: bool = False
    """Whether a ring's bytes for each channel count for each rank."""

    def channels(self, plan: str, ranks: int, nbytes: int, most: int) -> int:
        """Number of channels, at most ``most``, that a plan for ``nbytes`` of data uses."""
        each = nbytes // ranks if self.each_rank and plan != "tree" else nbytes
        return self.window.channels(each, most)

    def wire_bytes(self, nbytes: int, unit_bytes: int) -> int:
        """Bytes that ``nbytes`` of data make on the wire, in whole elements."""
        return max(round(nbytes * self.wire / unit_bytes), min(nbytes, 1)) * unit_bytes


LL = Protocol("LL", 2.0, Window(8, 64 << 10, channel_bytes=512 * 8), 0.6 / 3.4, 4.6e-6,
              each_rank=True)
LL128 = Protocol("LL128", 128 / 120, Window(8, 614_400, channel_bytes=640 * 8), 1.9 / 3.4, 1.1e-6)
SIMPLE = Protocol("Simple", 1.0, NCCL_WINDOW, 1.0)
PROTOCOLS = (LL, LL128, SIMPLE)
