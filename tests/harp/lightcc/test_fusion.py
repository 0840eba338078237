"""Tensor fusion: buckets keep the order, and close by their sizes."""

from __future__ import annotations

from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from harp.lightcc.fusion import fill, fuse

SIZES = st.lists(st.integers(0, 4), max_size=30)


def buckets_of(starts, sizes):
    return [sizes[start:end] for start, end in pairwise([*starts, len(sizes)])]


@given(SIZES, st.integers(0, 10))
def test_fused_tensors_fit_and_the_next_one_would_not(sizes, threshold):
    starts = fuse(sizes, threshold)
    buckets = buckets_of(starts, sizes)
    assert list(chain(*buckets)) == sizes
    for bucket, after in pairwise([*buckets, []]):
        assert bucket
        assert len(bucket) == 1 or sum(bucket) <= threshold
        assert not after or sum(bucket) + after[0] > threshold


@given(st.lists(st.integers(1, 50), max_size=30))
def test_a_threshold_of_zero_sends_each_tensor_alone(sizes):
    assert fuse(sizes, 0) == list(range(len(sizes)))


@given(st.lists(st.integers(1, 4), max_size=30), st.integers(1, 8), st.integers(1, 10))
def test_a_bucket_of_ddp_is_closed_by_the_tensor_that_fills_it(sizes, first, usual):
    buckets = buckets_of(fill(sizes, first, usual), sizes)
    assert list(chain(*buckets)) == sizes
    for number, bucket in enumerate(buckets):
        limit = usual if number else first
        assert sum(bucket[:-1]) < limit
        assert number == len(buckets) - 1 or sum(bucket) >= limit
