"""Routes of packets: a draw at each switch among the shortest paths."""

from __future__ import annotations

import pytest

from harp.routing.templates import Endpoints, leaf_spine
from sim.network.packet.packet_world import NIC, End, Stage, World
from tests.sim.network.packet.packet_net import OVERHEAD, SEGMENT, US, serialised


def test_spray_uses_every_shortest_path() -> None:
    fabric = leaf_spine(Endpoints.uniform(2), leaves=2, spines=4)
    world = World(seed=1, segment=SEGMENT, overhead=OVERHEAD, slots=8,
                  piece_bytes=4 << 20, unit_bytes=65536)
    switches = len(fabric.switches)
    ends = [node if node < switches else NIC for node in range(switches + 2)]
    for source, target in zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True):
        world.add_link(100e9, US, source=ends[source], target=ends[target])
    world.share_buffers(switches, 32 << 20, 1.0)
    world.set_paths(fabric.next_hops)
    free = world.add_chain([], [])
    host = [End(world.add_process(), free, free) for _ in range(2)]
    routes = [world.add_spray(int(fabric.endpoint_ports[end, 0]), 1 - end) for end in range(2)]
    channel = world.add_connection(*host, routes[:1], routes[1:])
    nbytes = 32 << 20
    run = world.add_run(2, 1)
    world.advance()
    world.load(run, Stage([0], [1], [channel], [nbytes], [8]))
    assert world.advance() == ("done", run)
    assert world.now_ns * 1e-9 == pytest.approx(serialised(nbytes, 100e9), rel=0.05)
    up = [world.link_counts(int(fabric.links_between("leaf0", f"spine{n}")[0])).packets
          for n in range(4)]
    assert sum(up) >= nbytes // SEGMENT
    assert min(up) > 0.2 * sum(up)
