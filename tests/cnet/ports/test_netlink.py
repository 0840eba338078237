"""Links, addresses, routes and neighbours as the kernel has them, against iproute2."""

import json

import pytest

from lab.c_programs import build, library
from lab.namespace import why_unusable
from lab.veth import veth_pair

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())

ELSEWHERE = "192.0.2.9"
MAC = "02:00:00:00:00:09"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("netlink") / "asks",
                 ["tests/cnet/ports/test_netlink.c", str(library())])


@pytest.fixture
def ends():
    with veth_pair(mtu=1400) as pair:
        yield pair


def link_of(end):
    (link,) = json.loads(end.space.run("ip", "-json", "link", "show", end.device))
    return link


def test_links_and_their_addresses_are_those_of_ip(program, ends):
    end, link = ends[0], link_of(ends[0])
    index = str(link["ifindex"])
    assert end.space.run(program, "link", end.device).strip() == (
        f"{end.device} veth {index} mtu 1400 up {link['address']}")
    assert end.space.run(program, "address", index).strip() == end.ipv4
    assert end.space.run(program, "link", "nothere").strip() == "ENODEV"
    assert end.space.run(program, "address", "1").strip() == "ENOENT"  # loopback's are for itself


def test_routes_lead_to_a_neighbour_to_a_gateway_to_itself_or_nowhere(program, ends):
    near, far = ends
    index = link_of(near)["ifindex"]

    def route(to):
        return near.space.run(program, "route", near.ipv4, to).strip()

    assert route(far.ipv4) == f"{index} {far.ipv4} mtu 0"
    assert route(near.ipv4).endswith(" self")
    assert route(ELSEWHERE) == "ENETUNREACH"
    near.space.run("ip", "route", "add", f"{ELSEWHERE}/32", "via", far.ipv4, "mtu", "1300")
    assert route(ELSEWHERE) == f"{index} {far.ipv4} mtu 1300"


def test_a_neighbour_is_known_once_the_kernel_knows_it(program, ends):
    end = ends[0]
    index = str(link_of(end)["ifindex"])

    def neighbour():
        return end.space.run(program, "neighbour", index, ends[1].ipv4).strip()

    end.space.run("ip", "neigh", "flush", "all")
    assert neighbour() == "ENOENT"
    words = (ends[1].ipv4, "lladdr", MAC, "dev", end.device, "nud")
    end.space.run("ip", "neigh", "replace", *words, "permanent")
    assert neighbour() == MAC
    end.space.run("ip", "neigh", "replace", *words, "stale")
    assert neighbour() == f"{MAC} stale"


def test_a_link_that_goes_down_is_heard_of(program, ends):
    end = ends[0]
    command = f"ip link set {end.device} down"
    assert end.space.run(program, "changes", command, end.device).strip() == "down"
