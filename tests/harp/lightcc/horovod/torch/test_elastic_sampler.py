"""The sampler that remembers what of an epoch is done."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.lightcc.horovod import world
from harp.lightcc.horovod.torch.elastic_sampler import ElasticSampler


def at_each(size, do):
    """Do something as each rank of a job of so many; give what came of it."""
    found = []
    for rank in range(size):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world, "is_initialized", lambda: True)
            patch.setattr(world, "current", lambda rank=rank: SimpleNamespace(rank=rank, size=size))
            found.append(do(rank))
    return found


@settings(max_examples=50)
@given(st.integers(0, 40), st.integers(1, 5), st.booleans(), st.integers(0, 3))
def test_ranks_have_all_samples_and_as_many_each(length, size, shuffle, epoch):
    samplers = at_each(size, lambda _: ElasticSampler(range(length), shuffle, seed=7))
    at_each(size, lambda rank: samplers[rank].set_epoch(epoch))
    shares = [list(sampler) for sampler in samplers]
    assert {len(share) for share in shares} == {-(-length // size)}
    assert {len(sampler) for sampler in samplers} == {-(-length // size)}
    assert sorted({index for share in shares for index in share}) == list(range(length))
    if not shuffle and length % size == 0:
        assert shares == [list(range(rank, length, size)) for rank in range(size)]


@settings(max_examples=50)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 4), st.integers(1, 6))
def test_what_is_done_comes_no_more_after_the_ranks_have_changed(length, size, others, batch):
    samplers = at_each(size, lambda _: ElasticSampler(range(length)))
    done = set()
    for sampler in samplers:
        sampler.record_batch(0, batch)
        done.update(sampler.get_indices(0, batch))
    states = [sampler.state_dict() for sampler in samplers]
    left = at_each(others, lambda _: ElasticSampler(range(length)))
    at_each(others, lambda rank: left[rank].merge(states))
    found = {index for sampler in left for index in sampler}
    assert found == set(range(length)) - done
    if len(found) % others == 0:
        assert sum(map(len, left)) == len(found)


def test_an_epoch_begins_with_all_of_its_samples_in_another_order():
    sampler = ElasticSampler(range(20))
    first = list(sampler)
    sampler.record_batch(0, 12)
    sampler.reset()
    assert len(sampler) == 8
    sampler.set_epoch(1)
    assert sorted(sampler) == sorted(first)
    assert list(sampler) != first
    again = ElasticSampler(range(20))
    again.load_state_dict({"epoch": 1, "processed_indices": set()})
    assert list(again) == list(sampler)
