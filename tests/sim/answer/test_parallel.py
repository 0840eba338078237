"""Work spread over processes."""

import contextlib
import os
import select
import signal
import subprocess
import sys

import pytest

from sim.answer.parallel import each_shared, map_shared

WORK = """
import os, time
from sim.answer.parallel import map_shared

def work(shared, item):
    os.write(1, b"%d\\n" % os.getpid())  # in one piece, whoever else writes
    time.sleep(3600)

map_shared(work, None, range(3), workers=3)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_answers_come_in_the_order_of_items(workers):
    assert map_shared(pow, 2, range(20), workers) == [2 ** n for n in range(20)]


@pytest.mark.parametrize("workers", [1, 2])
def test_answers_come_as_they_are_done(workers):
    assert sorted(each_shared(pow, 2, range(20), workers)) == [2 ** n for n in range(20)]


def note(folder, item):
    (folder / str(item)).touch()


@pytest.mark.parametrize("workers", [1, 2])
def test_items_are_dropped_when_nobody_asks_any_more(tmp_path, workers):
    answers = each_shared(note, tmp_path, range(500), workers)
    next(answers)
    answers.close()
    assert len(list(tmp_path.iterdir())) < 500


def test_workers_end_with_a_process_that_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE)
    workers = [os.pidfd_open(int(parent.stdout.readline())) for _ in range(3)]
    try:
        parent.kill()
        parent.wait()
        for worker in workers:
            assert select.select([worker], [], [], 10)[0], "a worker outlived its parent"
    finally:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(worker, signal.SIGKILL)
            os.close(worker)
        parent.stdout.close()
