"""Groups of ranks, and shards of a range of bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harp.collectives.layout import Groups, Shards

COUNTS, PARTS, UNITS = st.integers(0, 10**6), st.integers(1, 50), st.sampled_from([1, 2, 4, 8])


@given(st.integers(1, 6), st.integers(1, 6), st.randoms(use_true_random=False))
def test_every_rank_is_found_where_it_stands(groups, size, random):
    ranks = list(range(groups * size))
    random.shuffle(ranks)
    made = Groups(np.array(ranks, np.int32).reshape(groups, size))
    for rank in ranks:
        group, position = made.find(rank)
        assert made.members[group, position] == rank
    assert made.numbers.tolist() == [group for group in range(groups) for _ in range(size)]


@given(COUNTS, UNITS, PARTS)
def test_shards_cover_the_range_and_differ_by_one_unit_at_most(units, unit_bytes, parts):
    shards = Shards.of(units * unit_bytes, unit_bytes, parts)
    index = np.arange(parts)
    start, length = shards.start(0, index), shards.length(0, index)
    assert start.tolist() == [0, *np.cumsum(length)[:-1]]
    assert start[-1] + length[-1] == units * unit_bytes == shards.range_bytes[0]
    assert set(length // unit_bytes) <= {units // parts, -(-units // parts)}
    assert not (length % unit_bytes).any()


@given(COUNTS, UNITS, PARTS, PARTS)
def test_a_shard_becomes_a_range_of_its_own(units, unit_bytes, parts, inner):
    outer = Shards.of(units * unit_bytes, unit_bytes, parts)
    cut = outer.within(inner)
    group = np.arange(parts)
    assert (cut.start(group, 0) == outer.start(0, group)).all()
    assert (cut.start(group, inner) == outer.start(0, group + 1)).all()
    assert (cut.range_bytes == outer.length(0, group)).all()
