"""HARP's NCCL plugin under the client: every version, port and mode, and bad days."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from lab.namespace import why_unusable
from lab.nccl_pair import Ended, Pair, client, harp, run_pair
from lab.veth import veth_pair
from tests.support.levels import long, long_except

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())

PORTS = ("udp", "tcp", "xdp", "mem")
MODES = ("threads", "inline")
WAYS = [(port, mode) for port in PORTS for mode in MODES]
every_way = pytest.mark.parametrize(("port", "mode"), long_except(
    WAYS, ("tcp", "inline")))
every_port_and_mode = pytest.mark.parametrize(("port", "mode"), long_except(
    WAYS, ("udp", "inline"), ("mem", "threads"), ("tcp", "inline")))
every_port_with_faults = pytest.mark.parametrize(("port", "mode"), long_except(
    [("udp", "inline"), ("xdp", "threads"), ("mem", "threads")], ("mem", "threads")))
"""A stream is in order and whole: the kernel repairs faults of packets there."""
TIMEOUT_S = 2
BOUND_S = 20
"""Within which a lost peer must be an error, on a machine that does much else."""

QUICK = ("fifo", "lifo", "tags", "smaller", "many", "in-flight")
FAULTS = {
    "lossy": "drop=2%,burst=0.2%,seed=7",
    "disorderly": "reorder=3%,duplicate=3%,jitter=200us,seed=7",
    "corrupting": "corrupt=1%,truncate=1%,drop=1%,seed=7",
}
ALL_FAULTS = "drop=1%,reorder=2%,duplicate=2%,corrupt=0.5%,truncate=0.5%,jitter=100us,seed=7"


def settings(port: str, mode: str, **more: str) -> dict[str, str]:
    return {"HARP_PORT": port, "HARP_PROGRESS": mode, "HARP_TIMEOUT": str(TIMEOUT_S), **more}


def run(ports: tuple[str, str], mode: str, *scenarios: str, options: tuple[str, ...] = (),
        queues: int = 1, **more: str) -> Ended:
    with veth_pair(queues=queues) as (a, b):
        return run_pair(
            client(), harp(), scenarios, spaces=(a.space, b.space),
            settings=(settings(ports[0], mode, **more), settings(ports[1], mode, **more)),
            options=("--limit", "120", "--bound", str(BOUND_S), "--quiet", str(1.5 * TIMEOUT_S),
                     *options))


def passed(ended: Ended) -> int:
    """Count the scenarios, so that none is left out unseen."""
    return len(re.findall("^ok ", ended.said[0], re.MULTILINE))


@pytest.mark.parametrize(("port", "mode"), long_except(
    [("tcp", "inline"), ("udp", "inline"), ("udp", "threads"), ("xdp", "inline"),
     ("mem", "threads")], ("tcp", "inline")))
def test_the_newest_version_on_every_port(port: str, mode: str) -> None:
    ended = run((port, port), mode)
    assert ended.good, str(ended)
    assert passed(ended) == 22, str(ended)


@pytest.mark.long
@pytest.mark.parametrize("ports", [("xdp", "udp"), pytest.param(("udp", "xdp"), marks=long)])
def test_xdp_on_one_side_and_udp_on_the_other(ports: tuple[str, str]) -> None:
    ended = run(ports, "inline", *QUICK, "sizes")
    assert ended.good, str(ended)


def check_under(faults: str, port: str, mode: str) -> None:
    ended = run((port, port), mode, *QUICK, "sizes", "flags", "unmap", "register", "communicators",
                options=("--largest", str(3 << 20)), HARP_FAULTS=faults, HARP_TIMEOUT="10")
    assert ended.good, str(ended)


@long
@pytest.mark.parametrize("faults", FAULTS)
def test_over_a_bad_network(faults: str) -> None:
    check_under(FAULTS[faults], "udp", "inline")


@every_port_with_faults
def test_a_network_that_fails_in_every_way(port: str, mode: str) -> None:
    check_under(ALL_FAULTS, port, mode)


@every_port_and_mode
def test_a_lost_peer_is_an_error_in_time(port: str, mode: str) -> None:
    ended = run((port, port), mode, "frozen")
    assert ended.good, str(ended)
    lines = re.findall(r"it said: NET/HARP : .*", ended.said[0])
    assert len(lines) == 1, str(ended)
    assert "HARP_TIMEOUT" in lines[0], str(ended)


@every_way
def test_a_killed_peer_need_not_be_waited_for(port: str, mode: str) -> None:
    ended = run((port, port), mode, "killed", HARP_TIMEOUT="600")
    assert ended.good, str(ended)
    assert "no process at the other end has its port any more" in ended.said[0], str(ended)


@long
@pytest.mark.parametrize("port", ["udp", "xdp", "tcp"])
def test_eight_ranks_a_host_on_one_nic(port: str) -> None:
    with veth_pair(queues=8) as (a, b), ExitStack() as stack:
        pairs = [stack.enter_context(Pair(
            client(), harp(), ["fifo", "tags", "communicators"], spaces=(a.space, b.space),
            settings=settings(port, "inline", HARP_TIMEOUT="30"), options=("--limit", "120")))
            for _ in range(8)]
        for pair in pairs:
            ended = pair.end()
            assert ended.good, str(ended)


@long
@pytest.mark.parametrize("mode", MODES)
def test_several_engines_and_paths(mode: str) -> None:
    ended = run(("udp", "udp"), mode, *QUICK, HARP_ENGINES="2", HARP_PATHS="4")
    assert ended.good, str(ended)


@long
def test_jumbo_frames() -> None:
    with veth_pair(mtu=9000) as (a, b):
        both: Any = settings("xdp", "threads")
        ended = run_pair(client(), harp(), [*QUICK, "sizes", "flags"], spaces=(a.space, b.space),
                         settings=both, options=("--limit", "120"))
        assert ended.good, str(ended)


def test_a_dump_shows_what_an_engine_saw_before_a_connection_failed(tmp_path: Path) -> None:
    ended = run(("udp", "udp"), "threads", "killed", HARP_DUMP=str(tmp_path / "dump"))
    assert ended.good, str(ended)
    assert (tmp_path / "dump").read_text().count("\n") > 5
