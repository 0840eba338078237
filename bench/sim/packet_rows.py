"""Workloads of the rows at fidelity packet: real sessions over every link of a fat tree.

Frames carry 4 KiB. Nothing but the network costs time: hosts have no chains, so that the figures
can be held against simulators that model no hosts (docs/results/performance.md).
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harp.routing.fabric import Fabric
    from sim.network.packet.packet_world import World

SEGMENT, OVERHEAD, TCP_HEADERS = 4096, 66, 90
SLOTS, PIECE = 8, 512 << 10
BUFFER_BYTES, MARK_BYTES = 32_000_000, 975_000
"""Of a switch, and of a port at 100 Gb/s (`sim.network.packet.assumptions`)."""


class Packets:
    """A fabric as a packet network, with a process for each endpoint."""

    def __init__(self, fabric: Fabric, seed: int, piece_bytes: int = PIECE) -> None:
        import numpy as np

        from sim.network.packet.packet_world import World

        self.fabric, self._random = fabric, np.random.default_rng(seed)
        self.world = World(seed=seed, segment=SEGMENT, overhead=OVERHEAD,
                           slots=SLOTS, piece_bytes=piece_bytes, unit_bytes=64 << 10)
        switches = len(fabric.switches)
        for source, bps, latency_s in zip(fabric.link_src.tolist(), fabric.link_bps.tolist(),
                                          fabric.link_latency_s.tolist(), strict=True):
            inside = source < switches
            self.world.add_link(bps, latency_s, source=source if inside else -1,
                                mark_bytes=MARK_BYTES if inside else 0)
        self.world.share_buffers(switches, BUFFER_BYTES, 1.0)
        self._free = self.world.add_chain([], [])
        self._processes = [self.world.add_process() for _ in fabric.endpoints]

    def connect(self, src: Sequence[int], dst: Sequence[int], *,
                over_tcp: bool = False) -> list[int]:
        """Channels between endpoints, over routes that random source ports hash to."""
        import numpy as np

        from sim.network.packet.packet_world import End, Tcp

        ports = self._random.integers(49152, 65536, len(src))
        there, back = (np.split(links, ptr[1:-1]) for ptr, links in (
            self.fabric.route(self.fabric.flows(src, dst, src_port=ports)),
            self.fabric.route(self.fabric.flows(dst, src, src_port=4791, dst_port=ports))))
        ends = [End(process, self._free, self._free) for process in self._processes]
        add = partial(self.world.add_tcp, tcp=Tcp(SEGMENT, TCP_HEADERS)) if over_tcp else (
            self.world.add_connection)
        return [add(ends[a], ends[b], [self.world.add_route(there[i])],
                    [self.world.add_route(back[i])])
                for i, (a, b) in enumerate(zip(src, dst, strict=True))]


def run_rows(world: World, ranks: int, stage: Any) -> dict[str, Any]:
    """Run one stage to its end."""
    run = world.add_run(ranks, 1)
    world.advance()
    world.load(run, stage)
    start_s = time.perf_counter()
    assert world.advance() == ("done", run)
    counts = world.counts()
    return {"run_s": time.perf_counter() - start_s, "end_ms": world.now_ns / 1e6,
            **counts._asdict()}


def permutation(fabric: Fabric, src: Sequence[int], dst: Sequence[int], nbytes: int,
                seed: int) -> dict[str, Any]:
    """Every endpoint sends ``nbytes`` to another."""
    from sim.network.packet.packet_world import Stage

    packets = Packets(fabric, seed)
    channels = packets.connect(src, dst)
    count = len(src)
    return run_rows(packets.world, len(fabric.endpoints), Stage(
        src, dst, channels, [nbytes] * count, [-(-nbytes // PIECE)] * count))


def all_to_all(fabric: Fabric, ranks: int, nbytes: int, seed: int, *,
               over_tcp: bool = False) -> dict[str, Any]:
    """Every rank sends ``nbytes`` in equal parts to all, `BATCH` at a time."""
    import numpy as np

    from harp.collectives.registry import make_plan
    from sim.network.packet.packet_communicator import in_batches
    from sim.network.packet.packet_world import Stage

    (phase,) = make_plan("alltoall", ranks=ranks, nbytes=nbytes).phases()
    parts = in_batches(phase)
    most = int(phase.bytes_per_edge.max())
    packets = Packets(fabric, seed, piece_bytes=most)
    world = packets.world
    run = world.add_run(ranks, len(parts))
    start_s = time.perf_counter()
    loaded = 0
    while (stop := world.advance()) == ("load", run):
        part = parts[loaded]
        loaded += 1
        channels = packets.connect(part.src.tolist(), part.dst.tolist(), over_tcp=over_tcp)
        world.load(run, Stage(part.src, part.dst, channels, part.bytes_per_edge,
                              np.ones(len(channels))))
    assert stop == ("done", run)
    counts = world.counts()
    return {"run_s": time.perf_counter() - start_s, "end_ms": world.now_ns / 1e6,
            **counts._asdict()}


def ring(fabric: Fabric, ranks: int, nbytes: int, seed: int) -> dict[str, Any]:
    """A ring allreduce of ``nbytes`` a rank, piece by piece."""
    import numpy as np

    from harp.collectives.registry import make_plan
    from harp.collectives.window import NCCL_WINDOW
    from sim.network.packet.packet_world import Stage

    (phase,) = make_plan("ring", ranks=ranks, nbytes=nbytes).phases()
    assert phase.feeds is not None
    cut = NCCL_WINDOW.cut(phase)
    packets = Packets(fabric, seed)
    channels = packets.connect(phase.src.tolist(), phase.dst.tolist())
    return run_rows(packets.world, ranks, Stage(
        phase.src, phase.dst, channels, phase.bytes_per_edge, np.full(ranks, cut.pieces), cut.lag,
        phase.feeds.source, phase.feeds.target))
