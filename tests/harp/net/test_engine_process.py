"""harp.Engine among threads, signals, forks and the end of an interpreter."""

import _thread
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import harp
from tests.harp.net.pairs import PATIENCE_S, engine, pair
from tests.support.mounts import mounts


def test_others_run_while_a_thread_waits():
    with pair() as (a, b):
        waiting = threading.Thread(target=lambda: b.recv(timeout=PATIENCE_S))
        waiting.start()
        assert sum(range(100_000)) > 0  # a wait that held the interpreter would be for ever
        a.send(b"done")
        waiting.join()


@pytest.fixture
def sigint_raises():
    """A shell starts jobs in the background with SIGINT ignored: Python keeps that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint_raises")
def test_ctrl_c_ends_a_wait():
    with pair() as (a, b):
        threading.Timer(0.1, _thread.interrupt_main, (signal.SIGINT,)).start()
        with pytest.raises(KeyboardInterrupt):
            b.recv_into(bytearray(10), timeout=PATIENCE_S)
        assert a.info


def test_a_child_of_fork_gets_an_error_and_the_parent_goes_on():
    with pair("udp") as (a, b):
        child = os.fork()
        if not child:
            outcome = 1
            try:
                a.send(b"from the child")
            except harp.Forked:
                a.close()
                b._engine.close()
                outcome = 0
            finally:
                os._exit(outcome)
        assert os.waitpid(child, 0)[1] == 0
        a.send(b"from the parent")
        assert bytes(b.recv(timeout=PATIENCE_S)) == b"from the parent"


AT_EXIT = """
import harp, threading
engine = harp.Engine("mem")
listener = engine.listen()
near = engine.connect(listener.handle, streamed=64)
far = listener.accept()
far.send(b"never given back")
buffer = next(iter(near.stream()))
view = memoryview(buffer)
posted = far.post(bytearray(10))
waiting = threading.Thread(target=lambda: listener.accept(), daemon=True)
waiting.start()
print(engine.stats_path)
"""


def test_an_interpreter_may_end_at_any_time():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True,
                          check=False, timeout=4 * PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")


def blocked_signals():
    """Return the signals that each thread of this process blocks."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            status = (task / "status").read_text()
            mask = int(status.split("SigBlk:")[1].split()[0], 16)
            found[task.name] = {number for number in range(1, 32) if mask >> number - 1 & 1}
    return found


def test_signals_come_to_the_application_threads_only():
    before = blocked_signals()
    with engine("mem"):
        after = blocked_signals()
        new = [blocked for task, blocked in after.items() if task not in before]
        assert new
        assert all({signal.SIGTERM, signal.SIGINT, signal.SIGCHLD} <= blocked for blocked in new)
        assert all(after[task] == before[task] for task in before if task in after)


@mounts
def test_where_no_file_is_left_for_a_mem_port_the_folder_is_named():
    script = ("mount -t tmpfs -o nr_inodes=1 none /dev/shm; "
              f"{sys.executable} -c 'import harp; harp.Engine(\"mem\")'")
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True,
                          text=True, check=False, timeout=PATIENCE_S)
    assert done.stderr.splitlines()[-1] == (
        "harp.net.errors.OpenError: mem: no socket in /dev/shm to be found by: "
        "No space left on device")
