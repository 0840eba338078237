"""The largest elements as pairs, against a sort."""

import numpy as np
import pytest

from harp._cnet import lib
from tests.cnet.lightcc.arrays import pointer

pytestmark = pytest.mark.usefixtures("form")
PAIR = np.dtype([("value", "<f4"), ("index", "<i4")])


@pytest.mark.parametrize(("n", "kept"), [(1, 1), (100, 7), (5000, 50), (5000, 5000)])
def test_pairs_and_what_they_leave_are_the_whole_vector(n, kept):
    random = np.random.default_rng(n + kept)
    values, error = (random.integers(-99, 100, n).astype(np.float32) for _ in range(2))
    whole, pairs = values + error, np.zeros(kept, PAIR)
    lib.harp_topk_select(pointer(values, "float"), pointer(error, "float"), n,
                         pointer(pairs, "uint8_t"), kept, PAIR.itemsize)
    largest = np.sort(np.argsort(-abs(whole), kind="stable")[:kept])
    assert (pairs["index"] == largest).all()  # of equals the first
    back = np.full(n, np.nan, np.float32)
    lib.harp_topk_add(pointer(back, "float"), n, pointer(pairs, "uint8_t"), kept, PAIR.itemsize)
    assert (back + error == whole).all()


def test_indices_beyond_the_vector_are_passed_over():
    pairs = np.array([(1, 0), (2, -1), (4, 3), (8, 10), (16, 3)], PAIR)
    found = np.full(10, np.nan, np.float32)
    lib.harp_topk_add(pointer(found, "float"), 10, pointer(pairs, "uint8_t"), 5, PAIR.itemsize)
    assert found.tolist() == [1, 0, 0, 20, 0, 0, 0, 0, 0, 0]
