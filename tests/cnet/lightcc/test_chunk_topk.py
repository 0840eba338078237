"""The largest values of each chunk in few bits, against a sort."""

import numpy as np
import pytest

from harp._cnet import ffi, lib
from tests.cnet.lightcc.arrays import pointer

pytestmark = pytest.mark.usefixtures("form")
N = 1000


def take(values, rule):
    message = np.zeros(lib.harp_chunk_bytes(len(values), rule), np.uint8)
    scratch = np.zeros(lib.harp_chunk_scratch_words(rule), np.uint32)
    lib.harp_chunk_take(pointer(values, "float"), len(values), rule, pointer(message, "uint8_t"),
                        pointer(scratch, "uint32_t"))
    return message


@pytest.mark.parametrize(("chunk", "keep"), [(64, 5), (100, 100), (128, 1), (2048, 64)])
def test_the_largest_of_each_chunk_are_moved_into_a_message(chunk, keep):
    rule = ffi.new("struct harp_chunk_rule *", [chunk, keep, 32])
    values = np.random.default_rng(chunk).permutation(N).astype(np.float32) - N / 2
    whole, left = values.copy(), values
    message = take(left, rule)
    said, weights = np.zeros((2, N), np.float32)
    lib.harp_chunk_add(pointer(said, "float"), pointer(weights, "float"), N, rule,
                       pointer(message, "uint8_t"), 2.0)
    assert (said / 2 + left == whole).all()
    wanted = np.zeros(N, bool)
    for first in range(0, N, chunk):
        part = abs(whole[first:first + chunk])
        wanted[first + np.argsort(-part, kind="stable")[:keep]] = True
    assert ((weights == 2) == wanted).all()
    assert set(weights.tolist()) <= {0.0, 2.0}


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_levels_are_near_and_what_they_miss_is_kept(bits):
    rule = ffi.new("struct harp_chunk_rule *", [100, 10, bits])
    left = np.random.default_rng(bits).normal(size=N).astype(np.float32)
    whole, said = left.copy(), np.zeros(N, np.float32)
    message = take(left, rule)
    lib.harp_chunk_add(pointer(said, "float"), ffi.NULL, N, rule, pointer(message, "uint8_t"), 1.0)
    assert said + left == pytest.approx(whole, abs=1e-6)
    for first in range(0, N, 100):
        part = slice(first, first + 100)
        sent = said[part] != 0
        step = 2 * abs(whole[part]).max() / (2**bits - 1)
        assert sent.sum() == 10
        assert abs(left[part][sent]).max() <= 0.51 * step
