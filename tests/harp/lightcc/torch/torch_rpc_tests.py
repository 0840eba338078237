"""torch's own tests of DDP under distributed autograd, with lightcc in place of gloo.

    python -m tests.harp.lightcc.torch.torch_rpc_tests [DdpComparison.test_... ...]

Gradients are sent by torch's RPC, which has a transport of its own; DDP averages over the backend.
A rank is a spawned process. The suite does not run them: what they ask of the backend beyond
`torch_own_tests.py` is sparse gradients, which `features.py` checks in seconds.
"""

import os
import sys
import types
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")
# torch's helpers derive from expecttest's class and use nothing of it in these tests.
sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))

import torch.distributed as dist  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402
from torch.testing._internal.distributed import ddp_under_dist_autograd_test as own  # noqa: E402
from torch.testing._internal.distributed.rpc import (  # noqa: E402
    tensorpipe_rpc_agent_test_fixture as fixture,
)

import harp.lightcc.torch  # noqa: E402, F401  (registers the backend)

init_process_group = dist.init_process_group


def init_over_lightcc(backend=None, **options):
    """Make the group that a test asks of gloo by name."""
    init_process_group("lightcc" if backend == "gloo" else backend, **options)


dist.init_process_group = init_over_lightcc


class Spawned(common_distributed.MultiProcessTestCase):
    """Starts the ranks."""

    def setUp(self):
        super().setUp()
        self._spawn_processes()


class DdpComparison(fixture.TensorPipeRpcAgentTestFixture, own.DdpComparisonTest, Spawned):
    """Distributed autograd against local autograd."""


class DdpUnderDistAutograd(fixture.TensorPipeRpcAgentTestFixture, own.DdpUnderDistAutogradTest,
                           Spawned):
    """DDP within and outside of a remote model."""


if __name__ == "__main__":
    unittest.main(verbosity=2)
