"""Pages on an accelerator: one that is made here, which does everything as late as it may.

One process makes all checks (device_check.py), since a process cannot take the accelerator back.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import ROOT

CHECKS = ("the_cpu", "little_device", "disk", "bf16", "fp16", "clipping", "accumulation",
          "a_write_outside_of_a_step_stays", "spare_memory_updates_its_chunks",
          "examples_train_there", "tests_of_the_cpu_train_there", "the_command_names_it")
WAITS = ("reads_ends_first", "written_page_leaves_whole", "update_waits", "operator_waits",
         "buffer_waits")
"""A slow operator and copies wait for each other; a training alone does not show it."""
PATIENCE_S = 600


@pytest.mark.long
@pytest.mark.parametrize("checks", [CHECKS, WAITS], ids=["training", "waits"])
def test_training_on_an_accelerator_waits_for_its_pages_and_holds_its_cap(checks):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.harp.angelptm.device_check", *checks],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=PATIENCE_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (done.returncode, done.stdout.split()) == (0, list(checks)), done.stderr[-3000:]
