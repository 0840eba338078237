"""Protocols of NCCL: channels and bytes on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harp.collectives.protocol import LL, LL128, SIMPLE

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(("protocol", "nbytes", "used"), [
    (SIMPLE, 8, 1), (SIMPLE, 64 * KIB, 4), (SIMPLE, MIB, 16), (LL, 8 * KIB, 2),
    (LL128, 10 * KIB, 2)])
def test_short_collectives_use_few_channels(protocol, nbytes, used):
    assert protocol.window.channels(nbytes, 16) == used


@pytest.mark.parametrize(("protocol", "plan", "used"), [
    (LL, "tree", 16), (LL, "ring", 1), (LL, "allgather", 1), (LL128, "ring", 12)])
def test_a_ring_by_ll_counts_the_bytes_of_a_channel_for_each_rank(protocol, plan, used):
    """64 KiB over 16 ranks: 512 threads of 8 bytes a rank (threadThresholds of NCCL's log)."""
    assert protocol.channels(plan, 16, 64 * KIB, 16) == used


@given(st.integers(0, 1 << 24), st.sampled_from([1, 2, 4, 8]))
def test_flags_double_the_bytes_of_ll_and_take_one_of_sixteen_of_ll128(units, unit_bytes):
    """4 of each 8 bytes are a flag, or 8 of each 128 (src/device/prims_ll*.h of NCCL 2.22)."""
    nbytes = units * unit_bytes
    assert SIMPLE.wire_bytes(nbytes, unit_bytes) == nbytes
    assert LL.wire_bytes(nbytes, unit_bytes) == 2 * nbytes
    wire = LL128.wire_bytes(nbytes, unit_bytes)
    assert wire % unit_bytes == 0
    assert abs(wire - nbytes * 16 / 15) <= unit_bytes / 2
    assert (wire > 0) == (nbytes > 0)
