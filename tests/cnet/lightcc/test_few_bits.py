"""Values in few bits: what a message says, and what is left."""

import numpy as np
import pytest

from harp._cnet import lib
from tests.cnet.lightcc.arrays import pointer

pytestmark = pytest.mark.usefixtures("form")
MOST = {8: 127, 4: 7, 2: 1}


@pytest.mark.parametrize("bits", MOST)
def test_a_message_has_a_scale_a_chunk_and_whole_bytes(bits):
    chunk = lib.HARP_BITS_CHUNK
    for n in (1, chunk - 1, chunk, chunk + 1, 3 * chunk + 5):
        levels = sum(-(-min(chunk, n - first) * bits // 8) for first in range(0, n, chunk))
        assert lib.harp_bits_bytes(n, bits) == 4 * -(-n // chunk) + levels


@pytest.mark.parametrize("seed", [0, 9])
@pytest.mark.parametrize("bits", MOST)
def test_what_is_said_and_what_is_left_are_the_values(bits, seed):
    n = 2 * lib.HARP_BITS_CHUNK + 77
    values = np.random.default_rng(bits).normal(size=n).astype(np.float32)
    message = np.zeros(lib.harp_bits_bytes(n, bits), np.uint8)
    left, said = np.zeros(n, np.float32), np.zeros(n, np.float32)
    lib.harp_bits_take(pointer(values, "float"), pointer(left, "float"), n,
                       pointer(message, "uint8_t"), bits, seed)
    lib.harp_bits_add(pointer(said, "float"), n, pointer(message, "uint8_t"), bits)
    assert said + left == pytest.approx(values, abs=1e-6)
    for first in range(0, n, lib.HARP_BITS_CHUNK):
        part = slice(first, first + lib.HARP_BITS_CHUNK)
        scale = abs(values[part]).max() / MOST[bits]
        assert abs(left[part]).max() <= scale * (1.001 if seed else 0.501)


def test_a_nan_makes_its_chunk_nan_and_no_other():
    chunk = lib.HARP_BITS_CHUNK
    values, said = np.ones(2 * chunk, np.float32), np.zeros(2 * chunk, np.float32)
    values[3] = np.inf
    message = np.zeros(lib.harp_bits_bytes(2 * chunk, 8), np.uint8)
    lib.harp_bits_take(pointer(values, "float"), pointer(None, "float"), 2 * chunk,
                       pointer(message, "uint8_t"), 8, 0)
    lib.harp_bits_add(pointer(said, "float"), 2 * chunk, pointer(message, "uint8_t"), 8)
    assert np.isnan(said[:chunk]).all()
    assert said[chunk:] == pytest.approx(1)
