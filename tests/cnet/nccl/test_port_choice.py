"""Ports of the plugin: of what kind they are, and why."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lab.veth import veth_pair
from tests.cnet.nccl.asked_plugin import INVALID_USAGE, SYSTEM_ERROR, ask, root_only, warnings


@root_only
@pytest.mark.parametrize("port", ["auto", "xdp", "udp"])
def test_packets_that_no_interface_takes_are_an_error_at_once(port):
    with veth_pair() as (end, _):
        found = ask(before=tuple(end.space.command()), HARP_PORT=port, HARP_MTU="9000")
        assert found["init"] == INVALID_USAGE
        said, = warnings(found)
        assert re.search(r'HARP_MTU is "9000": possible is 576 to 1500 on v1; ip link set dev v1 '
                         r'mtu 9000', said), said


def lines(found: dict[str, Any]) -> list[str]:
    return [text for _, text in found["said"]]


def line_of_engine(found: dict[str, Any]) -> str:
    return next(text for _, text in found["said"] if "engine 1 of 1" in text)


@root_only
def test_auto_opens_no_xdp_where_it_would_copy_and_says_why():
    with veth_pair() as (end, _):
        found = ask("listen", before=tuple(end.space.command()))
        assert re.search(r": tcp:10\.0\.1\.1:\d+ v1, ", line_of_engine(found)), found
        assert "v1: not xdp: a virtual interface has no zero copy" in lines(found)
        forced = ask("listen", before=tuple(end.space.command()), HARP_PORT="xdp")
        assert re.search(r": xdp: v1 queue 0", line_of_engine(forced)), forced


@root_only
def test_auto_tries_zero_copy_of_a_card_and_leaves_nothing_of_it_behind(tmp_path):
    sys_net, card = tmp_path / "net", tmp_path / "pci0000:00"
    for folder in (card, sys_net / "v1"):
        folder.mkdir(parents=True)
    (sys_net / "v1" / "device").symlink_to(card)
    with veth_pair() as (end, _):
        mounted = f'mount --bind {sys_net} /sys/class/net && exec "$@"'
        before = (*end.space.command(), "unshare", "--mount", "sh", "-c", mounted, "sh")
        found = ask("listen", before=before)
        assert re.search(r": tcp:.* v1, ", line_of_engine(found)), found
        assert any(text.startswith("v1: not xdp: the driver of v1 has no zero copy")
                   for text in lines(found)), found
        assert "xdp" not in end.space.run("ip", "link", "show", "dev", "v1")


@root_only
def test_asking_for_xdp_where_it_is_impossible_is_an_error():
    with veth_pair() as (end, _):
        # Without capabilities, as most containers are.
        bare = (*end.space.command(), "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--")
        assert ": tcp:10.0.1.1:" in line_of_engine(ask("listen", before=bare))
        forced = ask("listen", before=bare, HARP_PORT="xdp")
        assert forced["listen"] == SYSTEM_ERROR
        assert "v1 cannot be used: " in warnings(forced)[0]
