"""torchft's own tests of process groups, over ProcessGroupLightCC; a program for unittest.

    python -m tests.harp.lightcc.torch.torchft_tests
"""

from datetime import timedelta
from unittest import main

import numpy as np
import pytest
import torch
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


def run_at_all(test, work):
    """Run a function at all ranks, as torchft's own collectives are."""
    _COLLECTIVE_TO_FUNC["ours"] = work
    try:
        test._run_parallel("ours")
    finally:
        del _COLLECTIVE_TO_FUNC["ours"]


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
        run_at_all(self, work)


class LightCCFewBits(MultiPgBaseTest):
    BACKEND = "lightcc"
    WORLD_SIZE = 3

    @classmethod
    def _create_pg(cls, backend):
        return ProcessGroupLightCC(timeout=PATIENCE, managed=False, bits=8)

    def test_large_sums_of_float32_travel_in_few_bits_and_no_others(self):
        given = [np.random.default_rng(rank).normal(size=5000) for rank in range(self.WORLD_SIZE)]
        largest, found = max(np.abs(one).max() for one in given), {}

        def work(group, rank, _):
            large = torch.tensor(given[rank], dtype=torch.float32).reshape(50, 100)
            small, whole = large[0].clone(), torch.full((20_000,), 12345 + rank)
            double, most = large.double(), large.clone()
            for one, op in ((large, ReduceOp.SUM), (small, ReduceOp.SUM), (whole, ReduceOp.SUM),
                            (double, ReduceOp.SUM), (most, ReduceOp.MAX)):
                group.allreduce([one], op).wait()
            exact = sum(torch.tensor(one, dtype=torch.float32) for one in given)
            error = (large.reshape(-1) - exact).abs().max()
            # Half a level of each rank's, and half of one of the sum.
            assert 0 < error <= largest / 127 * self.WORLD_SIZE
            found[rank] = large.numpy().tobytes()
            torch.testing.assert_close(small, exact[:100])
            torch.testing.assert_close(double.reshape(-1).float(), exact)
            assert (whole == 3 * 12345 + 3).all()
            assert most.max() == np.float32(max(one.max() for one in given))
        run_at_all(self, work)
        assert len(found) == self.WORLD_SIZE
        assert len(set(found.values())) == 1

    def test_two_bits_are_refused(self):
        with pytest.raises(ValueError, match="bits is 2; allowed are 32, 8, 4"):
            ProcessGroupLightCC(bits=2)


del MultiPgBaseTest, TestCase  # unittest would run them, too
if __name__ == "__main__":
    main()
