"""Protocols of NCCL: channels and bytes on the wire."""

from __future__ import annotations

import pytest

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
