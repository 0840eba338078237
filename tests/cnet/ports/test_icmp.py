"""Errors of ICMP as the udp port sees them: on loopback, and between two network namespaces."""

import pytest

from lab.c_programs import build, library, run
from lab.veth import Net, veth_pair
from tests.cnet.ports.udp_ends import LOOPBACK, both, ends, root


@pytest.fixture(scope="module")
def icmp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("icmp")
    return build(folder / "test", ["tests/cnet/ports/test_icmp.c", str(library())])


@both
def test_a_port_that_nobody_has_is_noticed(icmp, family):
    run(icmp, "unreachable", *LOOPBACK[family])


@root
@both
def test_a_port_that_nobody_has_is_noticed_over_veth(icmp, family):
    with veth_pair() as (a, b):
        run(icmp, "unreachable", *ends(a, b, family))


@root
@both
def test_a_router_reports_the_mtu(icmp, family):
    with Net() as net:
        a, router, b = net.namespace(), net.namespace(), net.namespace()
        left, hub_left = net.connect(a, router)
        hub_right, right = net.connect(router, b, mtu=1300)
        router.sysctl("ipv4.ip_forward", 1)
        router.sysctl("ipv6.conf.all.forwarding", 1)
        for space, via in ((a, hub_left), (b, hub_right)):
            space.run("ip", "route", "add", "default", "via", via.ipv4)
            space.run("ip", "-6", "route", "add", "default", "via", via.ipv6)
        run(icmp, "narrow", *ends(left, right, family))


@root
@both
def test_an_interface_gets_a_smaller_mtu(icmp, family):
    with veth_pair() as (a, b):
        run(icmp, "lowered", *ends(a, b, family))


@root
def test_an_interface_that_vanishes(icmp):
    with veth_pair() as (a, b):
        run(icmp, "vanished", *ends(a, b, "ipv4"))


@root
def test_a_flood_of_icmp_crowds_out_nothing(icmp):
    with veth_pair() as (a, b):
        run(icmp, "flood", *ends(a, b, "ipv4"))
