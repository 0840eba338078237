"""Blocks of an all-to-all with counts: their places in memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harp.collectives.blocks import Blocks


@st.composite
def any_blocks(draw):
    """Blocks that go to some ranks each, to none, or have no bytes."""
    ranks = draw(st.integers(1, 5))
    src = sorted(draw(st.lists(st.integers(0, ranks - 1), max_size=12)))
    to = [draw(st.lists(st.booleans(), min_size=ranks, max_size=ranks)) for _ in src]
    nbytes = [draw(st.sampled_from([0, 1, 2, 5])) for _ in src]
    return Blocks(np.array(src, np.int64), np.array(to, bool).reshape(len(src), ranks),
                  np.array(nbytes, np.int64))


@given(any_blocks())
def test_blocks_lie_one_behind_the_other_at_both_ends(blocks):
    sent, came = [0] * blocks.ranks, [0] * blocks.ranks
    pairs = list(zip(*(part.tolist() for part in (*blocks.pairs, blocks.at_target)), strict=True))
    for block, (rank, nbytes) in enumerate(zip(blocks.src, blocks.nbytes, strict=True)):
        assert blocks.at_source[block] == sent[rank]
        sent[rank] += nbytes
        for target in np.flatnonzero(blocks.to[block]) if nbytes else ():
            assert pairs.pop(0) == (block, target, came[target])
            came[target] += nbytes
    assert pairs == []
    assert blocks.sent_bytes.tolist() == sent
    assert blocks.came_bytes.tolist() == came


@given(st.integers(1, 6).flatmap(lambda ranks: st.lists(
    st.lists(st.integers(0, 9), min_size=ranks, max_size=ranks), min_size=ranks, max_size=ranks)))
def test_counts_are_the_rows_and_columns_of_their_matrix(counts):
    blocks = Blocks.of_counts(counts, 4)
    assert blocks.sent_bytes.tolist() == (4 * np.sum(counts, axis=1)).tolist()
    assert blocks.came_bytes.tolist() == (4 * np.sum(counts, axis=0)).tolist()
    assert (blocks.to.sum(axis=1) == 1).all()
