"""The interface of a port and its own address there, in a namespace."""

import errno
import json

import pytest

from lab.c_programs import build, library
from lab.namespace import why_unusable
from lab.veth import veth_pair

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


@pytest.fixture(scope="module")
def finds(tmp_path_factory):
    program = build(tmp_path_factory.mktemp("interface") / "find",
                    ["tests/cnet/ports/test_interface.c", str(library())])

    def find(end, interface="-", local="-", mtu=0):
        return end.space.run(str(program), interface, local, str(mtu)).strip()

    return find


@pytest.fixture(scope="module")
def end():
    with veth_pair(mtu=1400) as (a, _):
        yield a


def test_an_interface_is_found_by_its_name_and_by_its_address(finds, end):
    (link,) = json.loads(end.space.run("ip", "-json", "link", "show", end.device))
    v4 = f"{end.device} {link['ifindex']} {end.ipv4} mtu 1400"
    assert finds(end, end.device) == v4  # IPv4 before IPv6
    assert finds(end, local=end.ipv4) == v4
    assert finds(end, local=f"{end.ipv4}:7000") == v4.replace(end.ipv4, f"{end.ipv4}:7000")
    v6 = f"{end.device} {link['ifindex']} {end.ipv6} mtu 1400"
    assert finds(end, end.device, end.ipv6) == v6
    assert finds(end, end.device, mtu=1200) == v4.replace("1400", "1200")


@pytest.mark.parametrize(("asked", "error", "says"), [
    ({}, errno.EINVAL, "a udp port needs an interface or an address of this host"),
    ({"interface": "nothere"}, errno.ENODEV,
     "there is no interface nothere here; ip -br link lists them"),
    ({"local": "192.0.2.1"}, errno.EADDRNOTAVAIL,
     "this host has no address 192.0.2.1; ip -br address lists those here"),
    ({"interface": "lo", "local": "192.0.2.1"}, errno.EADDRNOTAVAIL,
     "interface lo has no address 192.0.2.1; ip -br address lists those here")])
def test_what_is_not_there_is_said_in_a_sentence(finds, end, asked, error, says):
    assert finds(end, **asked) == f"-{error}: {says}"


def test_an_mtu_above_the_interfaces_is_refused(finds, end):
    assert finds(end, end.device, mtu=9000) == (
        f"-{errno.EINVAL}: an MTU of 9000 is asked for, but {end.device} has 1400; ip link set dev "
        f"{end.device} mtu 9000 raises it")


def test_an_interface_without_an_address_is_said(finds, end):
    end.space.run("ip", "link", "add", "bare", "type", "veth", "peer", "bare2")
    assert finds(end, "bare") == (f"-{errno.EADDRNOTAVAIL}: interface bare has no IP address yet; "
                                  "ip address add gives it one")
