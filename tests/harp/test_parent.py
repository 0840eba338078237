"""The end of a process with the one that started it."""

import os
import select
import signal
import subprocess
import sys

from tests.support import PATIENCE_S

PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), "500"],
                         stdout=subprocess.PIPE)
print(child.stdout.readline().decode().strip(), flush=True)
time.sleep(500)
"""
CHILD = """
import os, sys, time
from harp.parent import end_with_parent
end_with_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(int(sys.argv[2]))
"""


def test_a_child_ends_with_a_parent_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE,
                          text=True) as parent:
        seen = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        assert select.select([seen], [], [], PATIENCE_S)[0]
        os.close(seen)


def test_a_child_of_a_parent_that_has_ended_already_ends_at_once():
    done = subprocess.run([sys.executable, "-c", CHILD, "1000000000", "0"], capture_output=True,
                          check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (1, b"")
