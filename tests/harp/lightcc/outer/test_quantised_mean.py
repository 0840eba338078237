"""The mean over islands in few bits: nothing is lost, over any backend."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from harp.lightcc.outer import quantised_mean
from tests.harp.lightcc.outer.test_methods import check
from tests.support.levels import long

# torch 2.13 has another name for it, which older ones lack.


@long
def test_few_bits_lose_nothing_and_are_the_same_over_any_backend():
    check(["few_bits_lose_nothing", "few_bits_over_gloo_are_those_over_lightcc"])


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_the_mean_of_one_island_and_what_it_keeps_are_what_it_gave(bits):
    generator = torch.Generator().manual_seed(bits)
    error = torch.zeros(300)
    for _ in range(3):
        vector = torch.randn(300, generator=generator)
        given = vector + error
        work, give = quantised_mean.begin(vector, error, bits, None)
        work.wait()
        torch.testing.assert_close(give() + error, given)
        assert error.abs().max() > 0


@pytest.mark.usefixtures("one_rank")
def test_a_ring_is_refused_over_other_backends():
    with pytest.raises(ValueError, match="exchange is 'ring', which few bits go over the backend "
                                         "lightcc alone; over gloo give exchange='direct'"):
        quantised_mean.check_exchange("ring", None)
    quantised_mean.check_exchange("direct", None)
