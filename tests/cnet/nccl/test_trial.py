"""The trial that decides which of two ports carries the connections to a host (trial.h).

A veth pair has no zero copy, so the ranks ask for two ports by name; a policer or a filter for one
protocol makes one of them slow, or silent.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from lab.c_programs import PLAIN, build
from lab.namespace import why_unusable
from lab.nccl_pair import Ended, client, harp, run_pair
from lab.veth import End, Net, veth_pair
from tests.cnet.nccl.asked_plugin import INVALID_USAGE, ask, warnings
from tests.cnet.nccl.test_transfer import with_plugin
from tests.support import PATIENCE_S
from tests.support.levels import long, long_except

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
UDP, TCP = socket.IPPROTO_UDP, socket.IPPROTO_TCP
SLOW_BPS, BURST_BYTES = 50_000_000, 1 << 20
"""So slow that no busy machine makes the other port slower; a policed one may come too late."""
OPTIONS = ("--limit", "120", "--bound", "20", "--verbose")
QUICK_PORTS = [("udp,tcp", "tcp"), ("udp", "udp,tcp")]


@pytest.fixture
def pair() -> Iterator[tuple[End, End]]:
    with veth_pair() as ends:
        yield ends


def run(ends: tuple[End, End], *scenarios: str, ports: tuple[str, str] = ("udp,tcp", "udp,tcp"),
        progress: str = "auto", version: int = 12) -> Ended:
    settings = tuple({"HARP_PORT": port, "HARP_PROGRESS": progress, "HARP_TIMEOUT": "5"}
                     for port in ports)
    return run_pair(client(), harp(), scenarios, spaces=(ends[0].space, ends[1].space),
                    settings=settings, options=(*OPTIONS, "--version", str(version)))


def choices(ended: Ended) -> list[tuple[str, str]]:
    """The choice of each trial at both ends, and its words about the other port."""
    return [(found["port"], found["than"]) for log in ended.logs for found in re.finditer(
        r"data to 10\.0\.\d\.\d over (?P<port>.*?), v1 \((?P<than>[^)]*)\)", log)]


@pytest.mark.parametrize("progress", long_except(["threads", "inline"], "threads"))
@pytest.mark.parametrize(("slow", "wins", "loses"), [(UDP, "kernel TCP", "udp"),
                                                     (TCP, "udp", "kernel TCP")])
def test_the_faster_port_carries_the_data(pair: tuple[End, End], slow: int, wins: str, loses: str,
                                          progress: str) -> None:
    with ExitStack() as stack:
        for end in pair:
            stack.enter_context(end.policed_protocol(slow, SLOW_BPS, BURST_BYTES))
        ended = run(pair, "fifo", "tags", progress=progress)
    assert ended.good, str(ended)
    found = choices(ended)
    assert found, str(ended)
    for port, than in found:
        assert port == wins, str(ended)
        said = re.fullmatch(rf"udp,tcp(, tried before)?: (?:(\d+\.\d\d) times {loses}|{loses} "
                            r"brings no message in time)", than)
        assert said, than
        assert said[2] is None or float(said[2]) > 1


@pytest.mark.parametrize(("silent", "wins"), [(UDP, "kernel TCP"), (TCP, "udp")])
def test_a_port_whose_packets_all_vanish_loses(pair: tuple[End, End], silent: int,
                                               wins: str) -> None:
    with pair[0].without_protocol(silent):
        ended = run(pair, "fifo")
    assert ended.good, str(ended)
    assert {port for port, _ in choices(ended)} == {wins}, str(ended)
    assert "brings no message in time" in str(ended)


def test_a_driver_that_binds_and_drops_everything_loses() -> None:
    """The sockets of xdp are open at both ends; a switch between them passes none of its frames."""
    with Net() as net:
        here, switch, there = (net.namespace() for _ in range(3))
        near, near_port = net.connect(here, switch)
        far_port, far = net.connect(switch, there)
        switch.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        for end, gateway, other in ((near, near_port, far), (far, far_port, near)):
            end.space.run("ip", "route", "add", other.ipv4, "via", gateway.ipv4)
        for port in (near_port, far_port):
            port.offloads({"rx-gro": False})
        with near_port.without_protocol(UDP), far_port.without_protocol(UDP):
            ended = run((near, far), "fifo", ports=("xdp,tcp", "xdp,tcp"))
    assert ended.good, str(ended)
    assert "xdp: v1 queue 0" in ended.logs[0], str(ended)
    assert re.search(r"data to 10\.0\.\d\.\d over kernel TCP, v\d \(xdp,tcp: xdp brings no "
                     r"message in time\)", str(ended)), str(ended)


def test_the_next_job_knows_the_findings_of_the_last(pair: tuple[End, End]) -> None:
    first, second = run(pair, "fifo"), run(pair, "fifo")
    assert first.good, str(first)
    assert second.good, str(second)
    assert any("tried before" not in than for _, than in choices(first))
    assert choices(second)
    for _, than in choices(second):
        assert "tried before" in than, str(second)
    assert len({port for port, _ in choices(second) if port}) <= 2


@long
def test_a_rank_with_many_peers_tries_a_few_at_a_time(tmp_path: Path) -> None:
    """What a trial needs, 8 MiB for both ends in this process and the file's lock, is bounded."""
    hosts, flags = 24, PLAIN
    program = build(tmp_path / "many", with_plugin("test_trial_many.c", flags), flags)
    with Net() as net:
        here = net.namespace()
        for host in range(hosts + 1):
            here.run("ip", "link", "add", f"d{host}", "type", "veth", "peer", "name", f"e{host}")
            here.run("ip", "addr", "add", f"10.9.{host}.1/24", "dev", f"d{host}")
            for end in "de":
                here.run("ip", "link", "set", f"{end}{host}", "up")
        with here.entered():
            done = subprocess.run([program, "3"], check=False, capture_output=True, text=True,
                                  timeout=PATIENCE_S, env={
                                      **os.environ,
                                      "HARP_PORT": "udp,tcp", "HARP_IFNAME": "d",
                                      "HARP_PROGRESS": "inline", "HARP_ENGINES": "1",
                                      "HARP_CONF_FILE": "/dev/null"})
    assert done.returncode == 0, done.stdout + done.stderr
    more = json.loads(done.stdout)
    assert more["comms"] == 3 * hosts
    assert more["mib"] < 80
    assert more["descriptors"] < hosts


@pytest.mark.parametrize("hosts", long_except([6, 24, 128], 6))
def test_a_rank_serves_the_trials_of_a_few_hosts_at_a_time(tmp_path: Path, hosts: int) -> None:
    flags = PLAIN
    program = build(tmp_path / "crowd", with_plugin("test_trial_crowd.c", flags), flags)
    with Net() as net:
        here = net.namespace()
        links = [(f"p{host}", f"q{host}", f"10.8.{host}.1/24") for host in range(hosts)]
        commands = tmp_path / "commands"
        commands.write_text("".join(
            f"link add {name} type veth peer name {far}\naddr add {address} dev {name}\n"
            f"link set {name} up\nlink set {far} up\n"
            for name, far, address in [*links, ("rank", "far", "10.7.0.1/24")]))
        here.run("ip", "-batch", commands)
        with here.entered():
            done = subprocess.run([program, str(hosts)], check=False, capture_output=True,
                                  text=True, timeout=2 * PATIENCE_S, env={
                                      **os.environ,
                                      "HARP_PORT": "udp,tcp", "HARP_PROGRESS": "threads",
                                      "HARP_ENGINES": "1", "HARP_CONF_FILE": "/dev/null"})
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads(done.stdout)
    assert made["trials"] > hosts / 2  # on a machine that all hosts share some may come too late
    assert made["mib"] < 50 + hosts  # of that 0.5 MiB a host stay
    assert made["descriptors"] < 50 + 2 * hosts


@pytest.mark.parametrize("ports", [
    pytest.param(ports, marks=() if ports in QUICK_PORTS else long)
    for ports in (("udp,tcp", "tcp"), ("tcp", "udp,tcp"), ("udp,tcp", "udp"), ("udp", "udp,tcp"),
                  ("udp,tcp", "auto"))])
def test_an_end_with_one_port_meets_an_end_with_both(pair: tuple[End, End],
                                                     ports: tuple[str, str]) -> None:
    ended = run(pair, "fifo", "tags", "killed", ports=ports)
    assert ended.good, str(ended)


@pytest.mark.parametrize("version", long_except([6, 9], 6))
def test_older_versions_of_nccl_try_too(pair: tuple[End, End], version: int) -> None:
    ended = run(pair, "fifo", "killed", version=version)
    assert ended.good, str(ended)


@pytest.mark.parametrize("name", ["HARP_PLAN", "HARP_FAULTS"])
def test_a_setting_that_binds_packets_allows_no_trial(name: str) -> None:
    value = {"HARP_PLAN": "plan.json", "HARP_FAULTS": "drop=1%"}[name]
    found = ask(HARP_IFNAME="=lo", HARP_PORT="udp,tcp", **{name: value})
    assert found["init"] == INVALID_USAGE
    assert f'HARP_PORT is "udp,tcp", and {name} is for HARP\'s own packets' in warnings(found)[0]
