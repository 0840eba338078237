"""Sweeps on a Dask cluster: a real scheduler, worker processes, one of them killed."""

from __future__ import annotations

import os
import signal
import socket
import socketserver
import subprocess
import sys
from contextlib import ExitStack
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st

from sim.sweeps.dask_cluster import LEAST_TASKS, TASK_S, task_batches
from sim.sweeps.outcome_store import Store
from sim.validate import main as validate
from tests.sim.answer.test_traced import file as traced
from tests.sim.test_sweep import run, stored, sweep_file
from tests.sim.test_validate import case_of, write
from tests.sim.traces.test_replay import compute
from tests.support.free_ports import free_ports
from tests.support.levels import long, long_except

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sim.sweeps.study import Outcome

pytestmark = pytest.mark.filterwarnings("default")  # Dask's own warnings are not ours to fix


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0",
                      host="127.0.0.1") as made:
        yield made


@long
def test_a_killed_worker_costs_no_point_and_none_is_done_twice(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster) -> None:
    sweep = sweep_file(tmp_path, grid={"workload.batch": list(range(1, 41))})
    with Client(cluster.scheduler_address, set_as_default=False) as client:
        victim = next(iter(client.run(os.getpid).values()))
    kept: list[str] = []
    put = Store.put

    def put_and_kill(store: Store, outcome: Outcome) -> None:
        put(store, outcome)
        kept.append(outcome.key)
        if len(kept) == 5:
            os.kill(victim, signal.SIGKILL)

    monkeypatch.setattr(Store, "put", put_and_kill)
    done = run(sweep, "-o", tmp_path / "dask.parquet", "--dask", cluster.scheduler_address)
    assert done.exit_code == 0, done.output
    assert len(kept) == len(set(kept)) == len(stored(tmp_path)) == 40
    run(sweep, "-o", tmp_path / "here.parquet", "--cache", tmp_path / "other")
    assert (tmp_path / "dask.parquet").read_bytes() == (tmp_path / "here.parquet").read_bytes()
    again = run(sweep, "-o", tmp_path / "b.parquet", "--dask", cluster.scheduler_address)
    assert "40 of 40 points are stored" in again.stderr
    assert len(kept) == 80  # only the run without Dask added some


@given(count=st.integers(1, 300), each_s=st.floats(0, 100), threads=st.integers(1, 20))
def test_short_items_share_tasks_and_each_is_in_one(count: int, each_s: float,
                                                    threads: int) -> None:
    items = [(str(number), number) for number in range(count)]
    made = [list(one) for one in task_batches(items, each_s, threads)]
    assert [item for one in made for item in one] == items
    longest = max(map(len, made))
    assert longest == 1 or longest * each_s <= TASK_S
    assert longest == 1 or len(made) >= LEAST_TASKS * threads


def test_a_users_figures_are_scored_on_a_cluster_as_here(
        tmp_path: Path, cluster: LocalCluster) -> None:
    """The workers get the file's bytes: the file itself is of another machine."""
    case = write(tmp_path, case_of())
    options = [str(case), "--draws", "4"]
    here = CliRunner().invoke(validate, [*options, "--workers", "1"])
    there = CliRunner().invoke(validate, [*options, "--dask", cluster.scheduler_address])
    assert (here.exit_code, here.output) == (0, there.output), there.output
    assert "made-up" in here.output


def test_workers_of_another_version_are_refused(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster) -> None:
    monkeypatch.setattr("sim.sweeps.dask_cluster.source_digest", lambda: "0" * 64)
    done = run(sweep_file(tmp_path), "-o", tmp_path / "r.csv", "--dask", cluster.scheduler_address)
    assert done.exit_code == 2
    assert "another version of HARP" in done.stderr
    assert not (tmp_path / "r.csv").exists()


def traced_sweep(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A sweep over traces, all by names that begin in this process's folder."""
    made = traced(folder, compute(1, 500))
    (folder / "sweep.yaml").write_text(f"topology: {made.name}\ngrid: {{seed: [1, 2]}}\n")
    monkeypatch.chdir(folder)
    return "sweep.yaml"


def test_workers_find_the_files_that_a_topology_names_from_any_folder(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster) -> None:
    sweep = traced_sweep(tmp_path, monkeypatch)
    done = run(sweep, "-o", "r.csv", "--dask", cluster.scheduler_address)
    assert done.exit_code == 0, done.output
    assert "refused" not in done.output
    run(sweep, "-o", "here.csv", "--cache", "other")
    assert (tmp_path / "r.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()


def test_a_worker_with_another_file_is_one_sentence_and_no_answer(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster) -> None:
    """An answer that lacks the file would be kept as if it had it."""
    sweep = traced_sweep(tmp_path, monkeypatch)
    monkeypatch.setattr("sim.sweeps.study._file_digest", lambda _: "0" * 64)
    done = run(sweep, "-o", "r.csv", "--dask", cluster.scheduler_address)
    assert done.exit_code == 2
    said = done.stderr.splitlines()[-1]
    assert said.startswith("error: ")
    assert f"a worker lacks {tmp_path}/traces/t.0.et" in said
    assert stored(tmp_path) == {}
    assert not (tmp_path / "r.csv").exists()


@pytest.mark.parametrize("address", long_except(
    ["", "nowhere", "tcp://", "tcp://h:port", "http://127.0.0.1:1"], "tcp://h:port"))
def test_what_is_no_address_is_one_sentence(tmp_path: Path, address: str) -> None:
    """In a process of its own: a client that came half into being speaks at its end."""
    done = subprocess.run([sys.executable, "-m", "sim.sweep", sweep_file(tmp_path), "-o",
                           tmp_path / "r.csv", "--dask", address],
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "is no address of a Dask scheduler" in done.stderr


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "127.0.0.1:1"])
def test_an_address_without_a_scheduler_is_one_sentence(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr("sim.sweeps.dask_cluster.TIMEOUT_S", 0.5)
    done = run(sweep_file(tmp_path), "-o", tmp_path / "r.csv", "--dask", address)
    assert done.exit_code == 2
    assert "no Dask scheduler answers there" in done.stderr
    assert "Traceback" not in done.output
    assert not (tmp_path / "r.csv").exists()


@pytest.mark.parametrize("says", [b"", b"HTTP/1.0 400 Bad Request\r\n\r\n"])
def test_a_port_of_something_else_is_one_sentence(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: bytes) -> None:
    """A client would wait for its greeting without end."""
    monkeypatch.setattr("sim.sweeps.dask_cluster.TIMEOUT_S", 0.5)
    callers = []

    class Silent(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            callers.append(self.request)
            self.request.sendall(says)
            self.request.recv(1 << 16)
            while self.request.recv(1 << 16):
                pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Silent) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        done = run(sweep_file(tmp_path), "-o", tmp_path / "r.csv", "--dask",
                   f"tcp://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    assert done.exit_code == 2, done.output
    assert callers
    assert "no Dask scheduler answers there" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "r.csv").exists()


@long
def test_a_scheduler_that_dies_is_one_sentence_and_what_was_done_is_kept(tmp_path: Path) -> None:
    """In processes of their own, as no in-process scheduler is killed."""
    (port,), folder = free_ports(1, socket.SOCK_STREAM), tmp_path / "cache"
    address = f"tcp://127.0.0.1:{port}"
    dask = [sys.executable, "-m", "dask"]
    command = [sys.executable, "-m", "sim.sweep",
               sweep_file(tmp_path, grid={"workload.batch": list(range(1, 4001))}),
               "-o", tmp_path / "r.csv", "--cache", folder, "--dask", address, "--quiet"]
    with ExitStack() as ended:
        def start(*words: str) -> subprocess.Popen[bytes]:
            made = subprocess.Popen([*dask, *words, "--no-dashboard"], stderr=subprocess.DEVNULL)
            ended.callback(made.wait)
            ended.callback(made.kill)
            return made

        scheduler = start("scheduler", "--host", "127.0.0.1", "--port", str(port))
        start("worker", address, "--nthreads", "1", "--no-nanny")
        with Client(address, timeout=60, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=60)
        sweeping = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True)
        while len(list(folder.glob("*/*.json"))) < 5:
            assert sweeping.poll() is None
        scheduler.kill()
        said = sweeping.communicate(timeout=120)[1]
    kept = len(list(folder.glob("*/*.json")))
    assert (sweeping.returncode, said) == (2, f"error: the Dask scheduler at {address} has gone; "
                                           f"{kept:,} of 4,000 points are kept, and the same "
                                           "command goes on\n")
    assert not (tmp_path / "r.csv").exists()


def test_a_scheduler_without_workers_is_one_sentence(tmp_path: Path) -> None:
    with LocalCluster(n_workers=0, processes=False, dashboard_address=":0",
                      host="127.0.0.1", protocol="tcp") as empty:
        done = run(sweep_file(tmp_path), "-o", tmp_path / "r.csv", "--dask",
                   empty.scheduler_address)
    assert done.exit_code == 2
    assert "the scheduler has no workers" in done.stderr


def test_without_the_package_there_is_a_sentence(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    done = run(sweep_file(tmp_path), "-o", tmp_path / "r.csv", "--dask", "tcp://127.0.0.1:1")
    assert done.exit_code == 2
    assert "harp-stack[sweep]" in done.stderr
