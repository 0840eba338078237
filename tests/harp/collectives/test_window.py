"""The window of a pipeline: pieces, slots and channels, as NCCL has them."""

from __future__ import annotations

import pytest

from harp.collectives.registry import make_plan
from harp.collectives.window import NCCL_WINDOW, Window

KIB, MIB = 1 << 10, 1 << 20


def pieces(name, nbytes, *, channels=16, hosts=2, gpus=8):
    plan = make_plan(name, ranks=hosts * gpus, nbytes=nbytes, group=gpus, chunk_bytes=nbytes)
    (phase,) = plan.phases()
    return NCCL_WINDOW.cut(phase, channels)


@pytest.mark.parametrize(("nbytes", "piece"), [
    (1 * MIB, 32 * KIB), (4 * MIB, 32 * KIB), (16 * MIB, 64 * KIB), (128 * MIB, 128 * KIB),
    (1024 * MIB, 512 * KIB)])
def test_a_tree_over_hosts_of_eight_is_cut_as_by_nccl(nbytes, piece):
    """Depth 8: 64 pieces or at most 128 KiB, 32 or 64 KiB, 8 or 32 KiB (src/enqueue.cc)."""
    each_tree = nbytes // 16 // 2
    assert pieces("tree", nbytes).pieces == each_tree // piece


@pytest.mark.parametrize("nbytes", [16, 16 * MIB, 1024 * MIB])
def test_a_step_of_a_ring_is_two_messages_of_up_to_a_mebibyte(nbytes):
    cut = pieces("ring", nbytes)
    loops = max(1, -(-nbytes // (16 * 16 * 2 * MIB)))
    assert cut.pieces * cut.messages == 30 * 2 * loops


def test_channels_share_the_bytes_that_are_cut():
    alone, shared = (pieces("ring", 256 * MIB, channels=channels) for channels in (1, 16))
    assert alone.pieces == 16 * shared.pieces


def test_a_window_by_itself_says_nothing_of_channels_and_slices():
    assert Window().channels(1, 16) == 1
    assert Window().channels(16, 16) == 16
    (phase,) = make_plan("ring", ranks=2, nbytes=MIB).phases()
    assert Window().cut(phase).messages == 1.0
