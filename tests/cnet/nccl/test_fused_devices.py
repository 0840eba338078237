"""Several NICs as one device of NCCL's: HARP_RAILS, and what NCCL fuses itself."""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from lab.c_programs import build, run
from lab.nccl_pair import client, harp, run_pair
from lab.veth import End, Net
from tests.cnet.nccl.asked_plugin import INVALID_USAGE, add_links, ask, names, root_only, warnings
from tests.cnet.nccl.test_transfer import with_plugin
from tests.support.levels import long_except

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lab.namespace import Namespace


def test_devices_that_nccl_fuses(tmp_path: Path) -> None:
    run(build(tmp_path / "fused", with_plugin("test_fused_devices.c")))


@pytest.fixture
def space() -> Iterator[Namespace]:
    with Net() as net:
        made = net.namespace()
        add_links(made, "eth0", "eth1", "eth2")
        yield made


def ask_in(space: Namespace, *wishes: str, **settings: str) -> dict[str, Any]:
    return ask(*wishes, before=tuple(space.command()), HARP_PORT="udp", **settings)


@root_only
def test_a_group_is_one_device_in_place_of_its_nics(space: Namespace) -> None:
    found = ask_in(space, "listen", HARP_RAILS="eth2,eth0", HARP_PROGRESS="threads")
    assert names(found) == ["eth2+eth0", "eth1"]
    assert [device["speed"] for device in found["devices"]] == [20000, 10000]
    assert [device["parts"] for device in found["devices"]] == [[0], [1]]
    said = " ".join(text for _, text in found["said"])
    assert re.search(r"device 0 is eth2\+eth0, 10\.77\.2\.1, 10\.77\.0\.1", said), said
    for nic in ("eth2", "eth0"):
        assert f"eth2+eth0, engine 1 of 1: udp: {nic} " in said


@root_only
def test_each_nic_of_the_widest_group_has_tcp_beside_its_packets() -> None:
    nics = [f"eth{i}" for i in range(8)]
    with Net() as net:
        space = net.namespace()
        add_links(space, *nics, "eth8")
        found = ask("listen", before=tuple(space.command()), HARP_PORT="udp,tcp",
                    HARP_RAILS=",".join(nics))
        said = " ".join(text for _, text in found["said"])
        for nic in nics:
            assert f"engine 1 of 1: udp: {nic} " in said
            assert re.search(rf"engine 1 of 1: tcp:\S+ {nic},", said), said
        found = ask(before=tuple(space.command()), HARP_RAILS=",".join([*nics, "eth8"]))
        assert "a group has at most 8 NICs" in " ".join(warnings(found))


@root_only
@pytest.mark.parametrize(("rails", "says"), [
    ("eth0,eth9", r'HARP_RAILS names "eth9", which no device is: there are eth0 eth1 eth2'),
    ("eth0,eth1;eth1,eth2", "HARP_RAILS names eth1 twice"), ("eth0,eth0", "names eth0 twice")])
def test_a_wrong_group_is_an_error(space: Namespace, rails: str, says: str) -> None:
    found = ask_in(space, HARP_RAILS=rails)
    assert found["init"] == INVALID_USAGE
    assert re.search(says, " ".join(warnings(found)))


@root_only
def test_a_nic_of_a_group_that_is_down_is_passed_over(space: Namespace) -> None:
    space.run("ip", "link", "set", "eth1", "down")
    found = ask_in(space, HARP_RAILS="eth0,eth1")
    assert names(found) == ["eth0", "eth2"]
    assert "HARP_RAILS names eth1, which is down" in " ".join(warnings(found))


def sent_bytes(end: End) -> int:
    links = json.loads(end.space.run("ip", "-s", "-j", "link", "show", "dev", end.device))
    return int(links[0]["stats64"]["tx"]["bytes"])


@root_only
@pytest.mark.parametrize(("port", "mode"), long_except(
    itertools.product(["udp", "xdp", "tcp"], ["threads", "inline"]), ("tcp", "inline")))
def test_two_ranks_use_both_rails(port: str, mode: str) -> None:
    with Net() as net:
        spaces = net.namespace(), net.namespace()
        pairs = [net.connect(*spaces), net.connect(*spaces)]
        orders = ("v1,v2", "v2,v1")
        ended = run_pair(
            client(), harp(), ("fifo", "tags", "sizes", "killed"), spaces=spaces,
            options=("--limit", "120", "--bound", "20"), settings=tuple(
                {"HARP_PORT": port, "HARP_PROGRESS": mode, "HARP_TIMEOUT": "2",
                 "HARP_RAILS": order} for order in orders))
        assert ended.good, str(ended)
        for end in (end for pair in pairs for end in pair):
            assert sent_bytes(end) > 10_000_000
