"""Completion of flows packet by packet.

Each flow is a connection of HARP's own sessions over one path: by the links that its five-tuple
hashes to, or any shortest ones (spray). Answers go back by the reversed five-tuple. Frames are of
9,000 bytes, and switches have the buffers of `topologies`' default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.network.packet.packet_world import NIC, End, Stage, World

if TYPE_CHECKING:
    from harp.routing.fabric import Fabric, Flows

SEGMENT, OVERHEAD = 8832, 110
"""Payload of a frame, and its headers on the wire, of HARP 44."""
PIECE = 512 << 10
BUFFER_BYTES = 16 << 20
"""Of each switch."""


def bound_ms(bps: float, nbytes: int) -> float:
    """Time of a flow that has its links for itself, without latency."""
    return 1e3 * nbytes * 8 * (SEGMENT + OVERHEAD) / SEGMENT / bps


def completion_ms(fabric: Fabric, flows: Flows, nbytes: int, *, spray: bool = False) -> float:
    """Milliseconds until the last of the flows, which begin at once, has come whole."""
    world = World(seed=1, segment=SEGMENT, overhead=OVERHEAD - 44, slots=8, piece_bytes=PIECE,
                  unit_bytes=65536)
    _add_links(world, fabric)
    free = world.add_chain([], [])
    hosts = [End(world.add_process(), free, free) for _ in fabric.endpoints]
    there = _routes(world, fabric, flows, spray=spray)
    tuples = flows.tuples
    back = _routes(world, fabric, fabric.flows(flows.dst, flows.src, tuples.dst_port,
                                               tuples.src_port), spray=spray)
    for src, dst, out, answers in zip(flows.src.tolist(), flows.dst.tolist(), there, back,
                                      strict=True):
        channel = world.add_connection(hosts[src], hosts[dst], [out], [answers])
        run = world.add_run(2, 1)
        assert world.advance(world.now_ns) == ("load", run)
        world.load(run, Stage([0], [1], [channel], [nbytes], [-(-nbytes // PIECE)]))
    for _ in there:
        assert world.advance()[0] == "done"
    return float(world.now_ns * 1e-6)


def _add_links(world: World, fabric: Fabric) -> None:
    switches = len(fabric.switches)
    for source, target, bps, latency_s in zip(
            fabric.link_src.tolist(), fabric.link_dst.tolist(), fabric.link_bps.tolist(),
            fabric.link_latency_s.tolist(), strict=True):
        world.add_link(bps, latency_s, source=source if source < switches else NIC,
                       target=target if target < switches else NIC)
    world.share_buffers(switches, BUFFER_BYTES, 1.0)
    world.set_paths(fabric.next_hops)


def _routes(world: World, fabric: Fabric, flows: Flows, *, spray: bool) -> list[int]:
    if spray:
        return [world.add_spray(int(fabric.endpoint_ports[src, 0]), int(dst))
                for src, dst in zip(flows.src, flows.dst, strict=True)]
    ptr, links = fabric.route(flows)
    return [world.add_route(some) for some in np.split(links, ptr[1:-1])]
