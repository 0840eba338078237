"""Rows of a table by index, against numpy."""

import numpy as np
import pytest

from harp._cnet import lib
from tests.cnet.lightcc.arrays import pointer

pytestmark = pytest.mark.usefixtures("form")


@pytest.fixture(params=[1, 7, 64, 131])
def drawn(request):
    """Give a table, rows, an index and weights in whole numbers: all sums of them are exact."""
    random = np.random.default_rng(5)
    table, rows = (random.integers(-8, 9, (count, request.param)).astype(np.float32)
                   for count in (20, 50))
    return table, rows, random.integers(0, 20, 50), random.integers(-3, 4, 50).astype(np.float32)


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_taken_and_added_by_their_index(drawn, weighted):
    table, rows, index, weights = drawn
    factor = weights[:, None] if weighted else 1
    args = (pointer(index, "int64_t"), pointer(weights if weighted else None, "float"), len(index),
            table.shape[1])
    taken = np.full_like(rows, np.nan)
    lib.harp_rows_take(pointer(taken, "float"), pointer(table, "float"), *args)
    assert (taken == table[index] * factor).all()
    wanted = table.copy()
    np.add.at(wanted, index, rows * factor)
    lib.harp_rows_add(pointer(table, "float"), pointer(rows, "float"), *args)
    assert (table == wanted).all()


def test_products_of_rows_are_added_up(drawn):
    table, rows, index, _ = drawn
    found = np.full(len(index), np.nan, np.float32)
    lib.harp_rows_dot(pointer(found, "float"), pointer(table, "float"), pointer(rows, "float"),
                      pointer(index, "int64_t"), len(index), table.shape[1])
    assert (found == (table[index] * rows).sum(axis=1)).all()
