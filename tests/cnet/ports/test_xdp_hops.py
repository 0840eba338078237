"""Hops of the xdp port: routers, neighbours, links that go, and rtnl's lock."""

from __future__ import annotations

import errno
import re

import pytest

from lab.namespace import why_unusable
from lab.rtnetlink import held_rtnl
from lab.veth import Net, veth_pair
from tests.cnet.ports.xdp_peers import Peer, build_peer, ethernet_socket, meet, own

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build_peer(tmp_path_factory)


def routed(net):
    a, router, b = net.namespace(), net.namespace(), net.namespace()
    left, inner_left = net.connect(a, router)
    inner_right, right = net.connect(router, b)
    router.sysctl("ipv4.ip_forward", 1)
    router.sysctl("ipv6.conf.all.forwarding", 1)
    for space, subnet, via in ((a, 2, 1), (b, 1, 2)):
        host = 2 if space is a else 1
        space.run("ip", "route", "add", f"10.0.{subnet}.0/24", "via", f"10.0.{via}.{host}")
        space.run("ip", "route", "add", f"fd00:{subnet}::/64", "via", f"fd00:{via}::{host}")
    return left, inner_left, inner_right, right


@pytest.mark.parametrize("family", [4, 6])
def test_across_a_router(program, family):
    with Net() as net:
        a, _, _, b = routed(net)
        with Peer(program, a, own(a, family)) as x, Peer(program, b, own(b, family)) as y:
            meet(x, y)
            x.send(0, 50, 1400)
            y.send(0, 50, 1400)
            for peer in (x, y):
                got = peer.receive(50)
                assert (got["received"], got["strays"]) == (50, 0)


@pytest.mark.parametrize("family", [4, 6])
def test_a_router_reports_a_smaller_mtu(program, family):
    with Net() as net:
        a, _, narrow, b = routed(net)
        with Peer(program, a, own(a, family)) as x, Peer(program, b, own(b, family)) as y:
            meet(x, y)
            narrow.space.run("ip", "link", "set", narrow.device, "mtu", "1300")
            x.send(0, 1, 1400)
            most = 1300 - (28 if family == 4 else 48)
            assert x.do("notice 10000") == f"notice mtu {y.locals[0]} {most}"
            assert x.do("payload 0") == f"payload {most}"


def test_mtu_of_a_route(program):
    with veth_pair() as (a, b), Peer(program, a, "mtu=1400") as x:
        a.space.run("ip", "route", "add", "10.9.0.0/16", "via", b.ipv4, "mtu", "1000")
        assert x.do("hop 10.9.0.1:1").endswith("payload 972")
        assert x.do(f"hop {b.ipv4}:1").endswith("payload 1372")


def test_a_neighbour_that_moves(program):
    with veth_pair() as (a, b), Peer(program, a) as x, Peer(program, b) as y:
        meet(x, y)
        b.space.run("ip", "link", "set", b.device, "address", "02:00:00:00:77:77")
        a.space.run("ip", "neighbour", "replace", b.ipv4, "dev", a.device,
                    "lladdr", "02:00:00:00:77:77")
        x.do("tend 20")
        x.send(0, 20, 500)
        got = y.receive(20)
        assert (got["received"], got["strays"]) == (20, 0)
        # And what leaves there names the new address.
        with ethernet_socket(a) as raw:
            raw.close()
        y.do("tend 20")
        y.send(0, 1, 100)
        assert x.receive(1)["strays"] == 0


def test_a_stale_neighbour_is_asked_for(program):
    """The kernel does not see what leaves by AF_XDP; the port tells it that the entry is in use."""
    with veth_pair() as (a, b), Peer(program, a) as x, Peer(program, b) as y:
        meet(x, y)
        a.space.run("ip", "neighbour", "replace", b.ipv4, "dev", a.device, "lladdr", b.mac,
                    "nud", "stale")
        x.do("tend 20")
        x.send(0, 1, 100)
        x.do("tend 20")
        shown = a.space.run("ip", "neighbour", "show", b.ipv4)
        assert re.search("DELAY|PROBE|REACHABLE", shown)
        assert y.receive(1)["received"] == 1


def test_nobody_listens(program):
    with veth_pair() as (a, b), Peer(program, a) as x, Peer(program, b) as y:
        meet(x, y)
        nobody = f"{b.ipv4}:9"
        x.send(x.hop(nobody), 1, 100)
        assert x.do("notice 10000").startswith(f"notice unreachable {nobody}")


def test_a_router_without_a_route(program):
    with Net() as net:
        a, _, _, _ = routed(net)
        with Peer(program, a) as x:
            a.space.run("ip", "route", "add", "10.8.0.0/16", "via", "10.0.1.2")
            x.send(x.hop("10.8.0.1:7"), 1, 100)
            assert x.do("notice 10000").startswith("notice unreachable 10.8.0.1:7")
            assert x.do("hop 10.7.0.1:7").startswith(
                "error -101: there is no route to 10.7.0.1:7: Network is unreachable")


def test_a_link_that_goes_down_and_returns(program):
    with veth_pair() as (a, b), Peer(program, a) as x, Peer(program, b) as y:
        meet(x, y)
        a.space.run("ip", "link", "set", a.device, "down")
        x.do("tend 50")
        assert x.do("notice 10000").startswith(f"notice unreachable {y.locals[0]}")
        x.do("send 0 600 1000")  # leads nowhere and hangs nowhere
        a.space.run("ip", "link", "set", a.device, "up")
        x.do("tend 50")
        x.send(0, 1, 100)  # finds the neighbour again, by the kernel
        assert y.receive(1)["received"] == 1
        x.do("tend 50")
        x.send(0, 10, 100)
        assert y.receive(10)["strays"] == 0


def test_an_interface_that_is_deleted(program):
    with veth_pair() as (a, b), Peer(program, a) as x, Peer(program, b) as y:
        meet(x, y)
        x.send(0, 50, 1000)
        a.space.run("ip", "link", "delete", a.device)
        for peer, other in ((x, y), (y, x)):
            peer.do("tend 50")
            assert peer.do("notice 10000").startswith(f"notice unreachable {other.locals[0]}")
            peer.do("send 0 2000 1000")
            peer.do("receive 1 50")


def test_a_card_that_refuses_for_a_while(program):
    """No event of the link tells when it takes something again."""
    with veth_pair() as (a, b), Peer(program, a) as x, Peer(program, b) as y:
        meet(x, y)
        assert x.do(f"fail {errno.ENETDOWN} 6") == "done"
        x.send(0, 100, 1000)
        x.do("receive 1 200")
        got = y.receive(100)
        assert (got["received"], got["strays"]) == (100, 0)
        assert x.do("notice 1000") == f"notice trouble 1 errno {errno.ENETDOWN}"
        assert x.do("notice 10") == "notice none"


def test_ports_do_not_wait_for_a_process_that_holds_rtnl(program):
    """Neither for news of the link or a neighbour, nor to keep a neighbour in use."""
    with veth_pair() as (a, b), Peer(program, a) as x, Peer(program, b) as y:
        meet(x, y)
        for state in ("stale", "reachable", "stale"):
            a.space.run("ip", "neighbour", "replace", b.ipv4, "dev", a.device, "lladdr", b.mac,
                        "nud", state)
        a.space.run("ip", "link", "set", "dev", a.device, "alias", "changed")
        with held_rtnl():
            x.do("tend 20")
            x.send(0, 10, 100)
            x.do("tend 20")
            assert y.receive(10)["received"] == 10
