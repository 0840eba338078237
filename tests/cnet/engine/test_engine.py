"""The engine: messages between two of them over each port, and what happens around them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from lab.c_programs import PLAIN, RACES, SANITIZED, run
from lab.namespace import Namespace, why_unusable
from tests.cnet.engine.engine_programs import engine_program
from tests.support import PATIENCE_S
from tests.support.levels import each_once, long, long_except

WRAPPED = ["malloc", "calloc", "realloc", "aligned_alloc", "free", "pthread_mutex_lock"]
QUIET = [*PLAIN, *(f"-Wl,--wrap={name}" for name in WRAPPED)]


def program(folder: Path, name: str, flags: list[str] = SANITIZED) -> Path:
    return engine_program(folder, f"engine_{name}", flags)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program(tmp_path_factory.mktemp("engine"), "pair")


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program(tmp_path_factory.mktemp("engine"), "life")


@pytest.mark.parametrize(("port", "progress", "kind"), each_once(
    ["udp", "mem"], ["manual", "inline", "thread"], ["posted", "streamed", "drafts"]))
def test_messages_arrive_whole_and_in_order_and_no_frame_is_lost(
        pair: Path, port: str, progress: str, kind: str) -> None:
    run(pair, port, progress, kind, "1", "200", "150000")


@pytest.mark.parametrize("kind", ["posted", "drafts"])
def test_several_paths_carry_one_connection(pair: Path, kind: str) -> None:
    run(pair, "udp", "manual", kind, "4", "200", "100000")


@pytest.mark.parametrize("kind", ["posted", "streamed", "drafts"])
@pytest.mark.parametrize("port", ["udp", "mem"])
def test_messages_arrive_although_the_network_fails_in_every_way(
        pair: Path, port: str, kind: str) -> None:
    faults = "drop=2%,duplicate=1%,corrupt=1%,truncate=0.5%,reorder=2%,delay=100us,seed=5"
    said = run(pair, port, "manual", kind, "2", "100", "60000", faults)
    assert said.count("chaos of seed 5") == 2, said


@pytest.mark.long
def test_threads_share_nothing_but_rings(tmp_path: Path) -> None:
    threads = program(tmp_path, "pair", RACES)
    for arguments in (["udp", "thread", "posted"], ["udp", "inline", "streamed"],
                      ["mem", "thread", "drafts"], ["mem", "inline", "posted"]):
        run(threads, *arguments, "2", "200", "60000")


@pytest.mark.parametrize("flags", long_except([SANITIZED, RACES], SANITIZED), ids=["asan", "tsan"])
def test_who_drives_engines_sleeps_until_one_of_them_has_something_to_do(
        tmp_path: Path, flags: list[str]) -> None:
    run(program(tmp_path, "sleep", flags))


def test_a_child_of_fork_keeps_nothing_and_disturbs_nothing(life: Path) -> None:
    run(life, "fork")


@pytest.mark.parametrize(("what", "why"), [
    ("kill", "no process at the other end has its port any more"),
    ("stop", "silent for too long")])
def test_a_dead_or_frozen_peer_is_an_error_in_bounded_time(life: Path, what: str,
                                                           why: str) -> None:
    assert why in run(life, what)


def test_a_wrong_secret_is_an_error_in_bounded_time(life: Path) -> None:
    assert "nobody answered" in run(life, "wrong")


@pytest.mark.long
def test_an_idle_engine_uses_next_to_no_cpu(tmp_path: Path) -> None:
    assert float(run(program(tmp_path, "life", PLAIN), "idle")) < 5


def test_an_idle_thread_gives_its_cpu_to_others(tmp_path: Path) -> None:
    assert float(run(program(tmp_path, "shared_cpu", PLAIN))) < 60


def test_a_helper_does_not_spin_while_the_application_is_stopped_in_a_turn(tmp_path):
    used = float(run(program(tmp_path, "life", PLAIN), "held"))
    assert used < 15  # one that spins takes 30 and more


@pytest.mark.parametrize(("port", "own"), [("mem", set()), ("udp", {"sendmmsg", "recvmmsg"})])
def test_the_data_path_allocates_nothing_and_calls_only_what_its_port_must(
        tmp_path: Path, port: str, own: set[str]) -> None:
    quiet = program(tmp_path, "quiet", QUIET)
    run(quiet, port)
    strace = shutil.which("strace")
    if not strace:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    subprocess.run([strace, "-f", "-o", str(trace), str(quiet), port], check=True,
                   timeout=PATIENCE_S)
    window = trace.read_text().split("getppid(")[1:2]
    assert window, "the marks are missing"
    calls = set(re.findall(r"^\d+ +(\w+)\(", window[0], re.M))
    # Duties of once a millisecond: newcomers and the network's errors.
    assert calls <= own | {"epoll_wait", "recvmsg", "epoll_pwait", "ioctl"}, calls


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program(tmp_path_factory.mktemp("engine"), "many", PLAIN)


def test_a_turn_looks_at_no_connection_that_is_idle(many: Path) -> None:
    run(many, "turns", "2000")


def test_idle_connections_to_one_process_share_signs_of_life(many: Path) -> None:
    run(many, "quiet", "2000")


@long
def test_thousands_of_connections_over_udp_do_not_drown_in_signs_of_life(many: Path) -> None:
    run(many, "udp", "5000")


def test_connections_that_share_a_port_take_turns(many: Path) -> None:
    run(many, "share")


@long
def test_a_killed_peer_is_noticed_although_its_host_says_so_rarely(tmp_path: Path) -> None:
    run(program(tmp_path, "killed", PLAIN))


def test_a_rail_whose_ring_stays_full_holds_up_no_connection(tmp_path: Path) -> None:
    run(program(tmp_path, "stuck_rail"))


def test_data_on_a_flow_that_the_peer_has_left_is_sent_again_at_once(tmp_path: Path) -> None:
    run(program(tmp_path, "moved_flow"))


def test_a_sender_over_tcp_goes_on_while_no_acknowledgement_comes(tmp_path: Path) -> None:
    run(program(tmp_path, "unacknowledged", PLAIN))


BUFFERS = {"as they come": "", "small": "4096 16384 65536"}
"""Of a TCP socket: least, at first and most bytes."""


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
@pytest.mark.parametrize("buffers", BUFFERS)
def test_the_kernels_buffers_bound_thousands_of_connections(tmp_path: Path, buffers: str) -> None:
    with closing(Namespace()) as space:
        space.run("ip", "link", "set", "lo", "mtu", "1500")
        for name in ("tcp_rmem", "tcp_wmem") if BUFFERS[buffers] else ():
            space.sysctl(f"ipv4.{name}", BUFFERS[buffers])
        space.run(program(tmp_path, "windows", PLAIN), "2000", timeout_s=PATIENCE_S)


def test_a_push_sends_and_takes_in_nothing(tmp_path: Path) -> None:
    run(program(tmp_path, "pushed", PLAIN))


def test_memory_that_the_application_takes_back_is_not_read_again(tmp_path: Path) -> None:
    run(program(tmp_path, "taken_back"))


def test_a_small_socket_buffer_overflows_for_no_peer_of_ours(tmp_path: Path) -> None:
    words = [] if os.geteuid() else ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]
    run(Path("/usr/bin/env"), *words, str(program(tmp_path, "small_buffer", PLAIN)))


def test_an_answer_and_its_acknowledgement_leave_in_one_datagram(tmp_path: Path) -> None:
    run(program(tmp_path, "joined"))


def test_a_path_finds_the_best_udp_port_where_cards_have_many_queues(tmp_path: Path) -> None:
    run(program(tmp_path, "steer"))
