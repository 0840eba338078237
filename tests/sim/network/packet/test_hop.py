"""Packets that have crossed a link: the next one, the host at the end, or nowhere."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harp.routing.templates import Endpoints, leaf_spine
from sim.network.packet.packet_world import NIC, ConnectionEndedError, End, Stage, World
from tests.sim.network.packet.packet_net import OVERHEAD, SEGMENT, US, WIRE

RATE = 100e9


def empty_world() -> World:
    return World(seed=1, segment=SEGMENT, overhead=OVERHEAD, slots=8, piece_bytes=4 << 20,
                 unit_bytes=65536)


def ends(world: World) -> list[End]:
    free = world.add_chain([], [])
    return [End(world.add_process(), free, free) for _ in range(2)]


def move_s(world: World, channel: int, nbytes: int) -> float:
    start_ns, run = world.now_ns, world.add_run(2, 1)
    assert world.advance() == ("load", run)
    world.load(run, Stage([0], [1], [channel], [nbytes], [1]))
    assert world.advance() == ("done", run)
    return (world.now_ns - start_ns) * 1e-9


@pytest.mark.parametrize("links", [1, 2, 5])
def test_a_frame_crosses_all_links_of_its_route_one_after_the_other(links: int) -> None:
    world = empty_world()
    world.share_buffers(links, 32 << 20, 1.0)
    nodes = [NIC, *range(links - 1), NIC]
    there, back = ([world.add_link(RATE, US, source=a, target=b)
                    for a, b in pairwise(way)]
                   for way in (nodes, nodes[::-1]))
    channel = world.add_connection(*ends(world), [world.add_route(there)], [world.add_route(back)])
    move_s(world, channel, 1)  # handshake and credit
    counted = [world.link_counts(link).packets for link in there]
    assert len(set(counted)) == 1
    assert move_s(world, channel, SEGMENT) == pytest.approx(links * (WIRE * 8 / RATE + US),
                                                            abs=links * 1e-9)


def test_a_packet_without_a_next_link_is_dropped_and_counted() -> None:
    """Sprayed towards a host at which no link ends."""
    fabric = leaf_spine(Endpoints.uniform(2), leaves=2, spines=1)
    world, switches = empty_world(), len(fabric.switches)
    node = [number if number < switches else NIC for number in range(switches + 2)]
    cut = int(fabric.links_between("spine0", "leaf1")[0])
    for source, target in zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True):
        world.add_link(RATE, US, source=node[source], target=node[target])
    world.share_buffers(switches, 32 << 20, 1.0)
    world.set_paths(fabric.without([cut]).next_hops)
    first = int(fabric.endpoint_ports[0, 0])
    routes = [[world.add_spray(int(fabric.endpoint_ports[end, 0]), 1 - end)] for end in range(2)]
    channel = world.add_connection(*ends(world), *routes)
    with pytest.raises(ConnectionEndedError):
        move_s(world, channel, SEGMENT)
    assert world.link_counts(first).dropped == world.link_counts(first).packets > 0
