"""torch's own tests of process groups, over lightcc: those that ship with torch and need no GPU.

    python -m tests.harp.lightcc.torch.torch_own_tests    all of them
    ... -k all_reduce -k join                             those with one of these in their names
    BACKEND=gloo python ...                               over another backend, to compare

A rank is a process, forked from one that has imported torch. Tests that torch keeps for a backend
with a feature that lightcc has run here as well; the others are skipped with torch's reason.
"""

import os
import re
import sys
import types
import unittest
from unittest import mock

os.environ.setdefault("BACKEND", "lightcc")
os.environ.setdefault("WORLD_SIZE", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# torch's helpers derive from expecttest's class and use nothing of it in these tests.
sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))

import torch  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402

import harp.lightcc.torch  # noqa: E402, F401  (registers the backend)

BACKEND = os.environ["BACKEND"]
for feature in ("ddp", "gpu", "plugin"):
    common_distributed.DistTestCases.backend_feature[feature].add("lightcc")
common_distributed.skip_if_small_worldsize = lambda test: test  # groups of ranks 1 and 2 of 3

from torch.testing._internal.distributed import distributed_test  # noqa: E402

KEPT_FOR_OTHERS = re.compile(
    r"Only MPI supports (CPU )?all_to_all|GLOO Batch Send Recv CPU|Gloo-only test"
    r"|Only Gloo backend supports sparse all reduce"
    r"|get_future is only supported|Only Nccl & Gloo backend support Distributed"
    r"|Test requires backend lightcc to be one of {'gloo'}")
"""Reasons that torch names where it skips tests of what lightcc has, too."""
TORCH_REFUSES = re.compile("test_monitored_barrier|.*_cuda$")
"""torch itself lets gloo's groups alone call it; and tests for GPUs."""


class TorchOwnTests(distributed_test.TestDistBackend,
                    distributed_test.DistributedTest._DistTestBase):
    """All of DistributedTest, on the CPU."""

    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def _test_accumulate_gradients_no_sync(self, *args, **named):
        with mock.patch.object(distributed_test, "BACKEND", "gloo"):  # says: on the CPU
            super()._test_accumulate_gradients_no_sync(*args, **named)


def take_what_is_kept_for_others():
    for name in dir(TorchOwnTests):
        test = getattr(TorchOwnTests, name)
        reason = getattr(test, "__unittest_skip_why__", "")
        if KEPT_FOR_OTHERS.match(reason) and not TORCH_REFUSES.match(name):
            test.__unittest_skip__ = False


if BACKEND == "lightcc":
    take_what_is_kept_for_others()

if __name__ == "__main__":
    unittest.main(verbosity=2)
