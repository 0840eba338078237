"""Gradient fusion: laws that hold for any tensors, and cases worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.workloads.gradient_buckets import ddp_buckets, horovod_buckets
from sim.workloads.models import get_model

MIB = 1 << 20
TENSORS = st.lists(st.tuples(st.integers(1, 300 * MIB), st.floats(0, 0.5)), max_size=40)
TICKS = st.sampled_from([0.0, 1e-3, 5e-3])


def split(tensors):
    sizes = np.array([size for size, _ in tensors], np.int64)
    return sizes, np.sort(np.array([ready for _, ready in tensors], np.float64))


def check_laws(buckets, sizes, ready):
    # Every tensor in exactly one bucket, in order, none launched before it is ready.
    assert buckets.first[0] == 0
    assert buckets.first[-1] == len(sizes)
    assert (buckets.tensors > 0).all()
    assert len(buckets) == len(buckets.launch_s) == len(buckets.tensors)
    assert buckets.nbytes.sum() == sizes.sum()
    bucket_of = np.repeat(np.arange(len(buckets)), buckets.tensors)
    assert (buckets.launch_s[bucket_of] >= ready).all()
    assert (np.diff(buckets.launch_s) >= 0).all()


@given(TENSORS, st.integers(0, 200 * MIB), TICKS)
def test_horovod_keeps_the_laws_and_the_threshold(tensors, threshold, cycle):
    sizes, ready = split(tensors)
    buckets = horovod_buckets(sizes, ready, threshold_bytes=threshold, cycle_s=cycle)
    check_laws(buckets, sizes, ready)
    assert (buckets.nbytes[buckets.tensors > 1] <= threshold).all()
    bucket_of = np.repeat(np.arange(len(buckets)), buckets.tensors)
    assert (buckets.launch_s[bucket_of] - ready <= cycle + 1e-9).all()


@given(TENSORS, st.integers(0, 200 * MIB), st.sampled_from([1e-3, 5e-3]))
def test_horovod_packs_a_tick_as_full_as_order_allows(tensors, threshold, cycle):
    sizes, ready = split(tensors)
    buckets = horovod_buckets(sizes, ready, threshold_bytes=threshold, cycle_s=cycle)
    same_tick = np.diff(buckets.launch_s) == 0
    following = sizes[buckets.first[1:-1]]
    assert (buckets.nbytes[:-1] + following > threshold)[same_tick].all()


@given(TENSORS, st.integers(1, 10 * MIB), st.integers(1, 50 * MIB))
def test_ddp_keeps_the_laws_and_closes_each_bucket_at_its_size(tensors, first, size):
    sizes, ready = split(tensors)
    buckets = ddp_buckets(sizes, ready, first_bytes=first, bucket_bytes=size)
    check_laws(buckets, sizes, ready)
    limit = np.where(np.arange(len(buckets)) == 0, first, size)
    last = sizes[buckets.first[1:] - 1]
    assert (buckets.nbytes - last < limit).all()
    assert (buckets.nbytes[:-1] >= limit[:-1]).all()
    assert (buckets.launch_s == ready[buckets.first[1:] - 1]).all()


def test_without_threshold_and_cycle_each_tensor_leaves_the_moment_it_is_ready():
    ready = [0.1, 0.1, 0.25, 0.3]
    buckets = horovod_buckets([4, 8, 12, 4], ready, threshold_bytes=0, cycle_s=0)
    assert buckets.nbytes.tolist() == [4, 8, 12, 4]
    assert buckets.launch_s.tolist() == ready


def test_horovod_by_hand():
    buckets = horovod_buckets([3, 3, 3, 20, 1], [0.5, 0.9, 1.0, 1.1, 2.0], threshold_bytes=6,
                              cycle_s=1.0)
    assert buckets.nbytes.tolist() == [6, 3, 20, 1]  # 20 exceeds the threshold and goes alone
    assert buckets.launch_s.tolist() == [1, 1, 2, 2]


def test_a_gradient_that_is_ready_early_waits_for_its_turn():
    buckets = horovod_buckets([4, 4], [0.3, 0.1], threshold_bytes=0, cycle_s=0)
    assert buckets.launch_s.tolist() == [0.3, 0.3]


def test_ddp_splits_resnet50_by_its_default_sizes():
    sizes = [4 * tensor.elements for tensor in reversed(get_model("resnet50").tensors)]
    buckets = ddp_buckets(sizes, np.linspace(0, 0.1, len(sizes)))
    assert buckets.nbytes[0] == 4 * (1000 + 2048 * 1000)  # the classifier alone passes 1 MiB
    assert len(buckets) == 5
    assert (buckets.nbytes[1:-1] >= 25 * MIB).all()


def test_no_tensors_make_no_buckets():
    for buckets in (horovod_buckets([], []), ddp_buckets([], [])):
        assert len(buckets) == 0
        assert buckets.first.tolist() == [0]


@pytest.mark.parametrize(("sizes", "ready"), [([1], [0, 1]), ([[1]], [[0]]), ([0], [0]),
                                              ([-1], [0]), ([1], [-1.0]), ([1], [float("nan")])])
def test_impossible_tensors_are_refused(sizes, ready):
    for fuse in (horovod_buckets, ddp_buckets):
        with pytest.raises(ValueError, match=r"must be|allowed is"):
            fuse(sizes, ready)


def test_impossible_limits_are_refused():
    with pytest.raises(ValueError, match="allowed is 0 or more"):
        horovod_buckets([1], [0], cycle_s=-1)
    with pytest.raises(ValueError, match="allowed is 0 or more"):
        horovod_buckets([1], [0], threshold_bytes=-1)
    with pytest.raises(ValueError, match="more than 0"):
        ddp_buckets([1], [0], bucket_bytes=0)
