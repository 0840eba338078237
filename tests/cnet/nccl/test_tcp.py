"""HARP's NCCL plugin over kernel TCP, and which rank takes it.

What every port does is in test_nccl_harp.py; here is what TCP alone has.
"""

from __future__ import annotations

import re
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lab.namespace import Namespace, why_unusable
from lab.veth import veth_pair
from tests.cnet.nccl.test_plugin import INVALID_USAGE, ask, warnings
from tests.support.c_programs import SANITIZED, build, library
from tests.support.nccl_pair import Ended, Pair, client, harp, run_pair

root_only = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
QUICK = ("fifo", "lifo", "tags", "smaller", "many", "in-flight")
LO = {"HARP_IFNAME": "=lo"}


def run(*scenarios: str, settings: Any = None, options: tuple[str, ...] = (),
        veth: dict[str, Any] | None = None) -> Ended:
    with veth_pair(**(veth or {})) as (a, b):
        return run_pair(client(), harp(), scenarios, spaces=(a.space, b.space), settings=settings,
                        options=("--limit", "120", "--bound", "20", "--verbose", *options))


def says_tcp(found: dict[str, Any]) -> str:
    return next((text for _, text in found["said"] if ": tcp: kernel TCP" in text), "")


# ---- Who takes it ----

def test_auto_takes_tcp_where_nothing_needs_a_session_and_says_why() -> None:
    told = says_tcp(ask("listen", **LO))
    assert re.search(r"lo: tcp: kernel TCP, 1 data socket a connection \(as NCCL has by default\), "
                     r"driven by NCCL's thread \(no zero copy on one path: .*; HARP_PORT=udp takes",
                     told), told


@pytest.mark.parametrize(("name", "value"), [
    ("HARP_PATHS", "2"), ("HARP_FAULTS", "drop=1%"), ("HARP_ENGINES", "1"), ("HARP_CC", "fixed"),
    ("HARP_PROGRESS", "threads"), ("HARP_CPUS", "0"), ("HARP_XDP", "copy"),
    ("HARP_BUSY_POLL", "10"), ("HARP_DUMP", "dump"), ("HARP_PLAN", "plan.json")])
def test_what_a_session_alone_can_do_asks_for_one(name: str, value: str) -> None:
    assert not says_tcp(ask("listen", **LO, **{name: value}))
    found = ask("listen", **LO, HARP_PORT="tcp", **{name: value})
    assert found["init"] == INVALID_USAGE
    assert f'HARP_PORT is "tcp", and {name} is for HARP\'s own transport' in warnings(found)[0]


@pytest.mark.parametrize(("settings", "told"), [
    ({"HARP_SOCKETS": "3"}, "3 data sockets a connection (HARP_SOCKETS)"),
    ({"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "4"},
     "8 data sockets a connection (NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD)"),
    ({"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "16"}, "64 data sockets"),
    ({"NCCL_SOCKET_NTHREADS": "some"}, "1 data socket a connection")])
def test_sockets_are_as_many_as_asked_for(settings: dict[str, str], told: str) -> None:
    assert told in says_tcp(ask("listen", **LO, HARP_PORT="tcp", **settings))


def test_tcp_alone_opens_no_engine() -> None:
    found = ask("listen", **LO, HARP_PORT="tcp")
    assert (found["listen"], found["threads"]) == (0, [])
    assert not [text for _, text in found["said"] if "engine" in text]


MEET = [
    ("auto", "auto", "tcp"), ("auto", "tcp", "tcp"), ("tcp", "auto", "tcp"), ("auto", "udp", "udp"),
    ("udp", "auto", "udp"), ("xdp", "auto", "xdp"),
]


@root_only
@pytest.mark.parametrize(("first", "second", "way"), MEET)
def test_ranks_with_other_settings_meet(first: str, second: str, way: str) -> None:
    ended = run("fifo", "tags", settings=({"HARP_PORT": first, "HARP_STATS": "1"},
                                          {"HARP_PORT": second, "HARP_STATS": "1"}))
    assert ended.good, str(ended)
    for told in ended.told:
        assert ("messages over TCP" in told) == (way == "tcp"), str(ended)
        assert ("frames sent" in told) == (way != "tcp"), str(ended)


@root_only
def test_a_rank_that_has_paths_gets_a_session() -> None:
    ended = run("fifo", settings=({"HARP_PATHS": "4", "HARP_STATS": "1"}, {"HARP_STATS": "1"}))
    assert ended.good, str(ended)
    assert "over TCP" not in "".join(ended.told)


@root_only
@pytest.mark.parametrize("ports", [("tcp", "udp"), ("udp", "tcp")])
def test_ranks_that_both_insist_get_one_sentence(ports: tuple[str, str]) -> None:
    ended = run("fifo", settings=({"HARP_PORT": ports[0]}, {"HARP_PORT": ports[1]}),
                options=("--limit", "5"))
    assert not ended.good
    assert re.search(r"HARP_PORT is .* here and .* at the other rank: set it alike", str(ended))


# ---- What it does ----

def test_a_peer_played_with_bare_sockets(tmp_path: Path) -> None:
    program = build(tmp_path / "tcp", ["tests/cnet/tcp/test_tcp.c", str(library())], SANITIZED)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@root_only
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_connections_to_different_peers_share_ports(tmp_path: Path, address: str) -> None:
    """40 connections of 17 sockets, each to another listener, on a host with 100 ephemeral ports.

    Where bind chooses the port of a socket that will connect, no two sockets have the same, and no
    other program of the host finds one.
    """
    program = build(tmp_path / "tcp", ["tests/cnet/tcp/test_tcp.c", str(library())], SANITIZED)
    space = Namespace()
    try:
        space.sysctl("ipv4.ip_local_port_range", "40000 40099")
        space.run("sh", "-c", f"ulimit -n 4096; exec {program} {address}", timeout_s=300)
    finally:
        space.close()


@root_only
@pytest.mark.parametrize("sockets", ["2", "16", "64"])
def test_several_sockets_share_a_message(sockets: str) -> None:
    ended = run(*QUICK, "sizes", "killed", settings={"HARP_PORT": "tcp", "HARP_SOCKETS": sockets,
                                                     "HARP_STATS": "1"})
    assert ended.good, str(ended)
    assert re.search(rf"over TCP, data sockets {sockets}, \d+ segments sent again", str(ended))


@root_only
def test_one_side_may_have_more_sockets_than_the_other() -> None:
    ended = run(*QUICK, settings=({"HARP_PORT": "tcp", "HARP_SOCKETS": "3"},
                                  {"HARP_PORT": "tcp", "HARP_SOCKETS": "1"}))
    assert ended.good, str(ended)


@root_only
@pytest.mark.parametrize("version", [6, 9])
def test_older_versions_over_tcp(version: int) -> None:
    ended = run(settings={"HARP_PORT": "tcp"}, options=("--version", str(version),
                                                       "--largest", str(4 << 20)))
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
        assert "device 0 is v1, fd00:1::" in ended.told[0], str(ended)


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
