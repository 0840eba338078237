"""The udp port: on loopback, and between two network namespaces."""

import subprocess

import pytest

from lab.c_programs import build, library, run
from lab.namespace import why_unusable
from lab.veth import Net, veth_pair
from tests.support import PATIENCE_S

LOOPBACK = {"ipv4": ("127.0.0.1", "-", "127.0.0.1", "-"), "ipv6": ("::1", "-", "::1", "-")}
root = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
both = pytest.mark.parametrize("family", ["ipv4", "ipv6"])


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("port_udp")
    return build(folder / "test", ["tests/cnet/ports/test_port_udp.c", str(library())])


@pytest.fixture(scope="module")
def icmp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("port_udp_icmp")
    return build(folder / "test", ["tests/cnet/ports/test_port_udp_icmp.c", str(library())])


def ends(a, b, family):
    return getattr(a, family), a.space.path, getattr(b, family), b.space.path


@both
@pytest.mark.parametrize("test", ["sizes", "joined", "along", "apart", "marks", "waited",
                                  "waiting", "errors"])
def test_on_loopback(program, test, family):
    run(program, test, *LOOPBACK[family])


@both
def test_a_port_that_nobody_has_is_noticed(icmp, family):
    run(icmp, "unreachable", *LOOPBACK[family])


def test_ages_while_the_calendar_is_set(tmp_path):
    run(build(tmp_path / "test", ["tests/cnet/ports/test_stamp_clock.c"]))


def test_a_kernel_that_refuses_to_cut(program):
    run(program, "refused_offload", *LOOPBACK["ipv4"])


@root
@both
@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize("test", ["sizes", "joined", "along", "marks", "waited"])
def test_over_veth(program, test, family, mtu):
    with veth_pair(mtu=mtu) as (a, b):
        run(program, test, *ends(a, b, family))


@root
@both
def test_a_port_that_nobody_has_is_noticed_over_veth(icmp, family):
    with veth_pair() as (a, b):
        run(icmp, "unreachable", *ends(a, b, family))


@root
@both
def test_a_full_queue_holds_back(program, family):
    with veth_pair() as (a, b):
        a.shape(10**6, queue_bytes=64 << 20)
        with subprocess.Popen([program, "backlog", *ends(a, b, family)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "full\n", process.stderr.read()
            a.shape(10**9, queue_bytes=64 << 20)
            assert process.wait(timeout=PATIENCE_S) == 0, process.stderr.read()


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


@root
def test_without_offloads_of_the_device(program):
    with veth_pair() as (a, b):
        a.offloads({"tx-checksum-ip-generic": False, "tx-udp-segmentation": False})
        run(program, "sizes", *ends(a, b, "ipv4"))
