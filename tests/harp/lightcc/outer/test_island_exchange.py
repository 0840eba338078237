"""The mean of a vector over islands: of one island and of one peer, the vector itself."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from harp.lightcc.outer.island_exchange import (
    begin_few_bits_mean,
    begin_mean,
    begin_sparse_mean,
    few_bits_mean_of_peers,
    mean_of_peers,
    sparse_mean_of_peers,
)
from harp.lightcc.outer_policy import OuterPolicy
from tests.harp.lightcc.outer.test_elastic_peers import begin_bare

# torch 2.13 has another name for it, which older ones lack.

DILOCO = OuterPolicy("diloco", every=4, bits=4)
SPARSE = OuterPolicy("sparseloco", every=4, keep=2, chunk=16)


def drawn(seed=0, elements=70):
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("one_rank")
def test_the_mean_of_one_island_is_its_vector_less_what_it_keeps():
    vector = drawn()
    assert torch.equal(begin_mean(vector.clone(), None).wait(), vector)
    error = drawn(1)
    before = error.clone()
    mean = begin_few_bits_mean(vector.clone(), error, DILOCO, None).wait()
    torch.testing.assert_close(mean + error, vector + before)
    assert error.norm() < before.norm()


@pytest.mark.usefixtures("one_rank")
def test_a_sparse_mean_has_the_largest_of_each_chunk_and_the_rest_is_kept():
    error = drawn()
    before = error.clone()
    mean = begin_sparse_mean(error, SPARSE, None).wait()
    torch.testing.assert_close(mean + error, before)
    for chunk, sent in zip(before.split(16), mean.split(16), strict=True):
        largest = set(chunk.abs().topk(2).indices.tolist())
        assert set(sent.nonzero().flatten().tolist()) <= largest


def test_means_of_one_peer_are_its_own_whatever_its_share():
    """What it keeps counts by its share, as what it gives does."""
    _, (peer,) = begin_bare(1)
    vector, error = drawn(), drawn(1)
    before = error.clone()
    torch.testing.assert_close(mean_of_peers(vector.clone(), peer, 0.3).wait(), vector)
    mean = few_bits_mean_of_peers(vector.clone(), error, DILOCO, peer, 0.3).wait()
    torch.testing.assert_close(0.3 * mean + error, 0.3 * vector + before)
    error = drawn(2)
    before = error.clone()
    mean = sparse_mean_of_peers(error, SPARSE, peer, 0.3).wait()
    torch.testing.assert_close(mean + error, before)
    peer.close()
