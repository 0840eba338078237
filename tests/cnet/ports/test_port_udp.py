"""The udp port: on loopback, and between two network namespaces."""

import subprocess

import pytest

from lab.c_programs import build, library, run
from lab.veth import veth_pair
from tests.cnet.ports.udp_ends import LOOPBACK, both, ends, root
from tests.support import PATIENCE_S


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("port_udp")
    return build(folder / "test", ["tests/cnet/ports/test_port_udp.c", str(library())])


@both
@pytest.mark.parametrize("test", ["sizes", "joined", "along", "apart", "marks", "waited",
                                  "waiting", "errors"])
def test_on_loopback(program, test, family):
    run(program, test, *LOOPBACK[family])


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
def test_a_full_queue_holds_back(program, family):
    with veth_pair() as (a, b):
        a.shape(10**6, queue_bytes=64 << 20)
        with subprocess.Popen([program, "backlog", *ends(a, b, family)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "full\n", process.stderr.read()
            a.shape(10**9, queue_bytes=64 << 20)
            assert process.wait(timeout=PATIENCE_S) == 0, process.stderr.read()


@root
def test_without_offloads_of_the_device(program):
    with veth_pair() as (a, b):
        a.offloads({"tx-checksum-ip-generic": False, "tx-udp-segmentation": False})
        run(program, "sizes", *ends(a, b, "ipv4"))
