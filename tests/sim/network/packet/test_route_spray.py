"""Frames that are sprayed overtake one another; the session must not take that for loss."""

from __future__ import annotations

import pytest

from harp.routing.templates import Endpoints, leaf_spine
from sim.network.packet.packet_world import NIC, End, Stage, World

US = 1e-6
RATE = 25e9
SEGMENT = 8832
HOSTS, SPINES = 16, 4


def exchange_sprayed(seed: int) -> World:
    """Hosts under four leaves, under four spines: each sends to one under the next leaf."""
    fabric = leaf_spine(Endpoints.uniform(HOSTS), leaves=4, spines=SPINES)
    world = World(seed=seed, segment=SEGMENT, overhead=66, slots=8, piece_bytes=512 << 10,
                  unit_bytes=65536, idle_connections=64)
    switches = len(fabric.switches)
    for source, target in zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True):
        world.add_link(RATE, US, source=source if source < switches else NIC,
                       target=target if target < switches else NIC)
    world.share_buffers(switches, 32 << 20, 1.0)
    world.set_paths(fabric.next_hops)
    free = world.add_chain([], [])
    ends = [End(world.add_process(), free, free) for _ in range(HOSTS)]
    up = [int(fabric.endpoint_ports[end, 0]) for end in range(HOSTS)]
    target = [(host + HOSTS // 4) % HOSTS for host in range(HOSTS)]
    channels = [world.add_connection(ends[a], ends[b], [world.add_spray(up[a], b)],
                                     [world.add_spray(up[b], a)])
                for a, b in enumerate(target)]
    run = world.add_run(HOSTS, 1)
    assert world.advance() == ("load", run)
    world.load(run, Stage(list(range(HOSTS)), target, channels, [16 << 20] * HOSTS, [32] * HOSTS))
    assert world.advance() == ("done", run)
    return world


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_frames_that_are_overtaken_are_not_sent_again(seed: int) -> None:
    counts = exchange_sprayed(seed).counts()
    assert counts.lost == 0
    assert counts.again < 0.01 * counts.data
