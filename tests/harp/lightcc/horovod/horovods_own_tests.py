"""Horovod's own tests of its API for torch, over ours: `test/parallel/test_torch.py` of its source.

    git clone https://github.com/horovod/horovod
    harp run -np 2 python -m tests.harp.lightcc.horovod.horovods_own_tests \\
        horovod/test/parallel/test_torch.py

Options behind the file are pytest's, as ``-k duplicate``. Each rank prints its own count. Horovod
itself need not be installed: its name stands for our module, and the helpers that the file imports
are below.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import types
from pathlib import Path

import pytest
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where a test fails at one rank alone, the others do not wait for it for ever.
os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")


def launchers_rank_and_size():
    return int(os.environ.get("HOROVOD_RANK", "0")), int(os.environ.get("HOROVOD_SIZE", "1"))


def skip_without_a_gpu(test, message):
    test.skipTest(message)


@contextlib.contextmanager
def path_of_a_new_file():
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder, "file"))


def stand_in_for_horovod():
    """Give our modules the names that Horovod's file imports."""
    import harp.lightcc.horovod
    import harp.lightcc.horovod.torch as hvd

    helpers = types.ModuleType("common")
    helpers.mpi_env_rank_and_size = launchers_rank_and_size
    helpers.skip_or_fail_gpu_test = skip_without_a_gpu
    helpers.temppath = path_of_a_new_file
    # Three tests try every optimizer that torch has on layers with biases; Muon refuses these.
    if hasattr(torch.optim, "Muon"):
        torch.optim.Muon.__module__ = "torch, later than Horovod"
    sys.modules |= {"horovod": harp.lightcc.horovod, "horovod.torch": hvd, "common": helpers}


if __name__ == "__main__":
    stand_in_for_horovod()
    sys.exit(pytest.main(["-p", "no:cacheprovider", "-p", "no:xdist", "-rfEs", *sys.argv[1:]]))
