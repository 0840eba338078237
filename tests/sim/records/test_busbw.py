"""Rates of a collective as nccl-tests counts them."""

from __future__ import annotations

import pytest

from sim.records.busbw import busbw_factor, collective_row


def test_busbw_factors_are_those_of_nccl_tests() -> None:
    assert busbw_factor("allreduce", 16) == 2 * 15 / 16
    for name in ("allgather", "reduce_scatter", "reduce-scatter", "alltoall", "all-to-all"):
        assert busbw_factor(name, 4) == 0.75
    assert busbw_factor("broadcast", 4) == 1
    with pytest.raises(ValueError, match="unknown collective 'gather'"):
        busbw_factor("gather", 4)


def test_counts_are_those_of_nccl_tests() -> None:
    # all_reduce_perf prints count = size / 4 for floats, all_gather_perf a rank's own share.
    assert collective_row("allreduce", "ring", ranks=8, size_bytes=1024, time_s=1e-3).count == 256
    assert collective_row("allgather", "ring", ranks=8, size_bytes=1024, time_s=1e-3).count == 32
    row = collective_row("allreduce", "ring", ranks=8, size_bytes=10**9, time_s=0.1,
                         datatype="half")
    assert (row.count, row.algbw, row.busbw) == (5 * 10**8, 1e10, 1.75e10)
