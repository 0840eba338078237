"""Small packet networks by hand: switches, hosts whose processes cost no time, flows between them.

What is validated against closed forms and published set-ups is built of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from harp.collectives.window import NCCL_WINDOW
from sim.network.packet.assumptions import UNIT_BYTES
from sim.network.packet.world import NIC, End, Stage, Tcp, World

if TYPE_CHECKING:
    from collections.abc import Sequence

SEGMENT, OVERHEAD = 1408, 66
"""Of HARP's frames, where nothing else is asked for: payload, and Ethernet, IP and UDP."""


class Host(NamedTuple):
    """Its links, and the end of its connections."""

    up: int
    down: int
    end: End


class Net:
    """Hosts under switches of which only some ports are slow."""

    def __init__(self, switches: int, buffer_bytes: int, segment: int = SEGMENT) -> None:
        self.world = World(seed=1, segment=segment, overhead=OVERHEAD, slots=NCCL_WINDOW.slots,
                           piece_bytes=4 << 20, unit_bytes=UNIT_BYTES)
        self.world.share_buffers(switches, buffer_bytes, 1.0)
        self._free = self.world.add_chain([], [])

    def host(self, switch: int, bps: float, latency_s: float, mark_bytes: int = 0) -> Host:
        """Add a host."""
        world = self.world
        return Host(world.add_link(bps, latency_s, source=NIC, target=switch),
                    world.add_link(bps, latency_s, source=switch, target=NIC,
                                   mark_bytes=mark_bytes),
                    End(world.add_process(), self._free, self._free))

    def connect(self, source: Host, target: Host, tcp: Tcp | None = None,
                there: Sequence[int] = (), back: Sequence[int] = ()) -> int:
        """Add a channel over these links between switches: of kernel TCP, or of HARP."""
        world = self.world
        routes = ([world.add_route([source.up, *there, target.down])],
                  [world.add_route([target.up, *back, source.down])])
        if tcp is not None:
            return world.add_tcp(source.end, target.end, *routes, tcp)
        return world.add_connection(source.end, target.end, *routes)

    def begin(self, channel: int, nbytes: int, pieces: int) -> int:
        """Send so much on a channel from now on; the run's number."""
        run = self.world.add_run(2, 1)
        self.world.advance(self.world.now_ns)
        self.world.load(run, Stage([0], [1], [channel], [nbytes], [pieces]))
        return run

    def send(self, source: Host, target: Host, tcp: Tcp | None = None, there: Sequence[int] = (),
             back: Sequence[int] = ()) -> int:
        """Begin a flow without end; its channel."""
        channel = self.connect(source, target, tcp, there, back)
        self.begin(channel, 1 << 36, 1 << 17)
        return channel

    def frames(self, channels: Sequence[int], for_ns: int) -> list[int]:
        """Frames that get through on each channel in a while."""
        before = [self.world.channel_frames(channel) for channel in channels]
        self.world.advance(self.world.now_ns + for_ns)
        return [self.world.channel_frames(channel) - count
                for channel, count in zip(channels, before, strict=True)]
