"""torchft's own tests of process groups, over ProcessGroupLightCC; a program for unittest.

    python -m tests.harp.lightcc.torchft_tests
"""

from datetime import timedelta
from unittest import main

import pytest
from torch.distributed import ReduceOp, TCPStore
from torchft.process_group_test import _COLLECTIVE_TO_FUNC, MultiPgBaseTest, TestCase, _test_pg

from harp.lightcc.torchft import ProcessGroupLightCC

PATIENCE = timedelta(seconds=60)


class LightCCApis(TestCase):
    def test_apis(self):
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        group = ProcessGroupLightCC(timeout=PATIENCE, managed=False)
        group.configure(f"localhost:{store.port}/prefix", "0", 0, 1)
        assert group.size() == 1
        _test_pg(group)
        assert group.errored() is None
        group.shutdown()

    def test_a_missing_rank_is_named(self):
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        group = ProcessGroupLightCC(timeout=timedelta(seconds=1))
        with pytest.raises(RuntimeError, match="not made within 1 s: rank 1 did not come"):
            group.configure(f"localhost:{store.port}/prefix", "0", 0, 2)


class LightCCMultiPg(MultiPgBaseTest):
    BACKEND = "lightcc"
    WORLD_SIZE = 3

    @classmethod
    def _create_pg(cls, backend):
        return ProcessGroupLightCC(timeout=PATIENCE, managed=False)

    def test_collectives(self):
        for collective in _COLLECTIVE_TO_FUNC:
            with self.subTest(collective):
                self._run_parallel(collective)

    def test_the_others_hear_of_a_crash_and_go_on_in_a_new_group(self):
        def work(group, rank, tensor):
            group.configure(f"localhost:{self.store.port}/before", "0", rank, self.WORLD_SIZE)
            _COLLECTIVE_TO_FUNC["allreduce"](group, rank, tensor)
            if rank == self.WORLD_SIZE - 1:
                group.shutdown()
                return
            with pytest.raises(RuntimeError, match=f"rank {self.WORLD_SIZE - 1} is gone"):
                group.allreduce([tensor.clone()], ReduceOp.SUM).wait()
            assert "is gone" in str(group.errored())
            group.configure(f"localhost:{self.store.port}/after", "0", rank, self.WORLD_SIZE - 1)
            assert group.errored() is None
            _COLLECTIVE_TO_FUNC["allreduce"](group, rank, tensor)
        _COLLECTIVE_TO_FUNC["a crash"] = work
        try:
            self._run_parallel("a crash")
        finally:
            del _COLLECTIVE_TO_FUNC["a crash"]


del MultiPgBaseTest, TestCase  # unittest would run them, too
if __name__ == "__main__":
    main()
