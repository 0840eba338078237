"""The window of a pipeline: pieces, slots and channels, as NCCL has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(st.sampled_from(["ring", "tree", "broadcast", "allgather"]), st.integers(2, 40),
       st.integers(1, 1 << 28), st.integers(2, 9), st.sampled_from([4 * KIB, 64 * KIB, 512 * KIB]),
       st.integers(1, 16))
def test_no_piece_is_longer_than_a_slot_and_no_message_fills_the_window(
        name, ranks, elements, slots, slot_bytes, channels):
    (phase,) = make_plan(name, ranks=ranks, nbytes=4 * elements).phases()
    cut = Window(slots, slot_bytes).cut(phase, channels)
    longest = int(phase.bytes_per_edge.max())
    assert cut.pieces * slot_bytes * channels >= longest
    assert cut.pieces % phase.steps == 0
    assert cut.lag < slots  # all send before they receive: a full window would wait for ever


def test_messages_in_lock_step_are_sent_whole():
    for phase in make_plan("halving-doubling", ranks=8, nbytes=64 * MIB).phases():
        assert Window(2, 4 * KIB).cut(phase, 2)[:2] == (1, 0)
