"""Routes of packets: links one after the other, from the sender's NIC to the receiver's."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sim.network.packet_routes import find_routes, reverse
from sim.network.transport import Style, Transport
from sim.schema.parameters import load_stack
from tests.support.cluster_files import cluster

SPINES = 4
CLOS = {"template": "leaf-spine", "leaves": 2, "spines": SPINES}


def transport_of(folder, style=None, **given) -> Transport:
    made = cluster(folder, hosts=4, fabric=given.pop("fabric", CLOS), **given)
    return Transport(made, load_stack("harp", made.topology.stacks), style or Style())


def routes_of(transport, *pairs):
    src, dst = (np.array(column) for column in zip(*pairs, strict=True))
    return find_routes(transport, src, dst, np.zeros(len(src), np.int64))


def assert_leads(transport, links, src, dst):
    """Each link begins where the one before it ends; the ends are hosts."""
    fabric = transport.cluster.fabric
    switches = len(fabric.switches)
    ends = [(int(fabric.link_src[link]), int(fabric.link_dst[link])) for link in links]
    assert ends[0][0] == switches + src
    assert ends[-1][1] == switches + dst
    assert all(first[1] == second[0] for first, second in pairwise(ends))


@pytest.mark.parametrize("routing", ["hash", "plan"])
def test_data_and_answers_cross_the_fabric_from_end_to_end(tmp_path, routing):
    transport = transport_of(tmp_path, Style(routing=routing, sockets=3))
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    for (src, dst), routes in zip(pairs, routes_of(transport, *pairs), strict=True):
        assert len(routes) == 3
        assert len({route.ports for route in routes}) == 3
        for route in routes:
            assert_leads(transport, route.there.links, src, dst)
            assert_leads(transport, route.back.links, dst, src)
            assert route.there.to == route.back.to == -1


def test_answers_take_the_route_of_the_reversed_five_tuple(tmp_path):
    transport = transport_of(tmp_path)
    _, flows = transport.flows(np.arange(2), np.array([0, 1]), np.array([2, 3]),
                               np.zeros(2, np.int64))
    back = reverse(flows)
    assert back.src.tolist() == flows.dst.tolist()
    assert back.tuples.src_port.tolist() == flows.tuples.dst_port.tolist()
    twice = reverse(back)
    for name in ("src", "dst"):
        assert (getattr(twice, name) == getattr(flows, name)).all()
    for one, other in zip(twice.tuples, flows.tuples, strict=True):
        assert np.array_equal(one, other)


def test_sprayed_packets_name_their_first_link_and_the_end(tmp_path):
    transport = transport_of(tmp_path, Style(routing="spray"))
    (routes,) = routes_of(transport, (0, 3))
    ((there, back),) = {(route.there.to, route.back.to) for route in routes}
    assert (there, back) == (3, 0)
    for route in routes:
        (link,) = route.there.links
        assert int(transport.cluster.fabric.link_src[link]) == len(
            transport.cluster.fabric.switches)


def test_inside_a_host_no_link_is_crossed(tmp_path):
    transport = transport_of(tmp_path, gpus=2)
    inside, outside = routes_of(transport, (0, 1), (0, 2))
    assert not any(route.there.links or route.back.links for route in inside)
    assert all(route.there.links for route in outside)
