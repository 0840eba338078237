"""HARP's NCCL plugin over its tcp port, and which rank takes it.

What every port does is in test_plugin_under_client.py; here is what tcp alone has.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lab.namespace import why_unusable
from lab.nccl_pair import Ended, Pair, client, harp, run_pair
from lab.veth import veth_pair
from tests.cnet.nccl.asked_plugin import INVALID_USAGE, ask, warnings
from tests.support.levels import long, long_except

root_only = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
QUICK = ("fifo", "lifo", "tags", "smaller", "many", "in-flight")
LO = {"HARP_IFNAME": "=lo"}


def run(*scenarios: str, settings: Any = None, options: tuple[str, ...] = (),
        veth: dict[str, Any] | None = None) -> Ended:
    with veth_pair(**(veth or {})) as (a, b):
        return run_pair(client(), harp(), scenarios, spaces=(a.space, b.space), settings=settings,
                        options=("--limit", "120", "--bound", "20", "--verbose", *options))


def says_tcp(found: dict[str, Any]) -> list[str]:
    """The line that says that data goes over kernel TCP, and those with the reasons."""
    said = [text for _, text in found["said"]]
    first = next((i for i, text in enumerate(said) if text.startswith("data over kernel TCP, ")),
                 len(said))
    return said[first:]


# ---- Who takes it ----

def test_auto_takes_tcp_where_there_is_no_zero_copy_and_says_why() -> None:
    first, *reasons = says_tcp(ask("listen", **LO))
    assert first == "data over kernel TCP, 1 path, lo (auto: xdp has no zero copy here)"
    assert "lo: not xdp: a virtual interface has no zero copy" in reasons
    assert "lo: paths 1: as NCCL has by default" in reasons
    assert re.fullmatch(r"lo, engine 1 of 1: tcp:127\.0\.0\.1:\d+ lo, MTU 65536", reasons[-1])
    assert max(map(len, [first, *reasons])) < 100


@pytest.mark.parametrize(("name", "value"), [
    ("HARP_FAULTS", "drop=1%"), ("HARP_CC", "fixed"), ("HARP_XDP", "copy"),
    ("HARP_BUSY_POLL", "10")])
def test_what_packets_of_our_own_alone_can_do_asks_for_udp(name: str, value: str) -> None:
    assert not says_tcp(ask("listen", **LO, **{name: value}))
    found = ask("listen", **LO, HARP_PORT="tcp", **{name: value})
    assert found["init"] == INVALID_USAGE
    assert f'HARP_PORT is "tcp", and {name} is for HARP\'s own packets' in warnings(found)[0]


@pytest.mark.parametrize(("settings", "line"), [
    ({"HARP_SOCKETS": "3"}, "paths 3: HARP_SOCKETS"),
    ({"HARP_PATHS": "2"}, "paths 2: HARP_PATHS"),
    ({"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "4"},
     "paths 8: NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD"),
    ({"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "16"},
     "paths 64: NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD"),
    ({"NCCL_SOCKET_NTHREADS": "some"}, "paths 1: as NCCL has by default")])
def test_paths_are_as_many_as_asked_for(settings: dict[str, str], line: str) -> None:
    assert f"lo: {line}" in says_tcp(ask("listen", **LO, HARP_PORT="tcp", **settings))


@root_only
@pytest.mark.parametrize(("vendor", "flows", "why"), [
    ("0x1d0f", "16 paths", "paths 16: AWS bounds a flow's rate"),
    ("0x1ae0", "4 paths", "paths 4: Google Cloud bounds a flow's rate"),
    ("0x15b3", "1 path", "paths 1: as NCCL has by default")])
def test_paths_are_as_many_as_nccl_has_sockets_on_that_cloud(
        tmp_path: Path, vendor: str, flows: str, why: str) -> None:
    card = tmp_path / "net" / "v1" / "device"
    card.mkdir(parents=True)
    (card / "vendor").write_text(f"{vendor}\n")
    with veth_pair() as (end, _):
        mounted = f'mount --bind {tmp_path / "net"} /sys/class/net && exec "$@"'
        first, *reasons = says_tcp(ask("listen", HARP_PORT="tcp", before=(
            *end.space.command(), "unshare", "--mount", "sh", "-c", mounted, "sh")))
    assert first.startswith(f"data over kernel TCP, {flows}, v1"), first
    assert f"v1: {why}" in reasons, reasons


@root_only
@pytest.mark.parametrize("ports", [("auto", "auto"), ("auto", "tcp"), ("tcp", "auto")])
def test_ranks_with_other_settings_meet(ports: tuple[str, str]) -> None:
    ended = run("fifo", "tags", settings=tuple({"HARP_PORT": port, "HARP_STATS": "1"}
                                               for port in ports))
    assert ended.good, str(ended)
    for log in ended.logs:
        assert re.search(r"(sent to|received from) tcp:10\.0\.1\.\d:\d+ on v1: ", log), str(ended)


@root_only
@pytest.mark.parametrize("ports", [("tcp", "udp"), ("udp", "auto")])
def test_ranks_with_ports_of_other_kinds_get_one_sentence(ports: tuple[str, str]) -> None:
    ended = run("fifo", settings=({"HARP_PORT": ports[0]}, {"HARP_PORT": ports[1]}),
                options=("--limit", "5"))
    assert not ended.good
    assert ("the other end has ports of another kind: set HARP_PORT alike on all hosts"
            in str(ended)), str(ended)


# ---- What it does ----

@root_only
@pytest.mark.parametrize("sockets", long_except(["2", "16", "64"], "2"))
def test_several_flows_share_a_message(sockets: str) -> None:
    ended = run(*QUICK, "sizes", "killed", settings={"HARP_PORT": "tcp", "HARP_SOCKETS": sockets,
                                                     "HARP_STATS": "1"})
    assert ended.good, str(ended)
    assert f", paths {sockets}" in str(ended), str(ended)


@root_only
def test_one_side_may_have_more_flows_than_the_other() -> None:
    ended = run(*QUICK, settings=({"HARP_PORT": "tcp", "HARP_SOCKETS": "3"},
                                  {"HARP_PORT": "tcp", "HARP_SOCKETS": "1"}))
    assert ended.good, str(ended)


@root_only
@long
@pytest.mark.parametrize("version", [6, 9])
def test_older_versions_over_tcp(version: int) -> None:
    ended = run(settings={"HARP_PORT": "tcp", "HARP_TIMEOUT": "2"},
                options=("--version", str(version), "--largest", str(4 << 20)))
    assert ended.good, str(ended)


@root_only
def test_over_ipv6() -> None:
    with veth_pair() as (a, b):
        for end in (a, b):
            end.space.run("ip", "-4", "address", "flush", "dev", end.device)
        ended = run_pair(client(), harp(), ["fifo", "tags", "killed"], spaces=(a.space, b.space),
                         settings={"HARP_PORT": "tcp"},
                         options=("--limit", "120", "--bound", "20", "--verbose"))
        assert ended.good, str(ended)
        assert "device 0 is v1, fd00:1::" in ended.logs[0], str(ended)


def is_stopped(process: str) -> bool:
    """Whether a process, or one that it started, was stopped by a signal."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return False
    return state == "T" or any(is_stopped(child) for child in children)


@root_only
def test_a_host_that_is_gone_is_an_error_after_the_time_limit() -> None:
    """Rank 1 stops, and from then on no packet passes."""
    with veth_pair() as (a, b), Pair(
            client(), harp(), ["frozen"], spaces=(a.space, b.space),
            settings={"HARP_PORT": "tcp", "HARP_TIMEOUT": "2"},
            options=("--limit", "120", "--bound", "30")) as pair, ExitStack() as stack:
        while not is_stopped(str(pair.ranks[1].pid)):
            assert pair.ranks[0].poll() is None
        stack.enter_context(a.losing(1 - 1e-6))
        stack.enter_context(b.losing(1 - 1e-6))
        ended = pair.end()
        assert ended.good, str(ended)
        assert "has been silent for too long" in ended.said[0], str(ended)
