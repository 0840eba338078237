"""Compression of gradients that a caller chooses."""

from __future__ import annotations

import pytest
import torch

from harp.lightcc.horovod.torch.compression import Compression, Compressor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_floats_travel_as_float16_and_come_back_in_their_type(dtype):
    given = torch.linspace(-3, 3, 50).to(dtype)
    sent, context = Compression.fp16.compress(given)
    assert sent.dtype == torch.float16
    back = Compression.fp16.decompress(sent, context)
    assert back.dtype == dtype
    torch.testing.assert_close(back, given, rtol=1e-3, atol=1e-3)


def test_whole_numbers_travel_as_they_are():
    given = torch.tensor([1 << 40, -3])
    sent, context = Compression.fp16.compress(given)
    assert sent is given
    assert torch.equal(Compression.fp16.decompress(sent, context), given)


def test_without_compression_the_tensor_itself_is_sent():
    given = torch.ones(3)
    sent, context = Compression.none.compress(given)
    assert sent is given
    assert Compression.none.decompress(sent, context) is given


def test_a_compressor_of_ones_own_must_have_both_calls():
    class Half(Compressor):
        @staticmethod
        def compress(tensor):
            return tensor / 2, None

    with pytest.raises(NotImplementedError):
        Half.decompress(*Half.compress(torch.ones(2)))
