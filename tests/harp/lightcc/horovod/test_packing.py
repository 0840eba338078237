"""Packing of rows of tensors: nothing is lost, and ranks have their rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harp.lightcc.horovod.packing import Buffers, nbytes, pack, shares, split, unpack

SIZES = st.lists(st.integers(0, 20), max_size=8)


def drawn(sizes):
    random = np.random.default_rng(sum(sizes))
    return [random.integers(1, 256, size, np.uint8) for size in sizes]


@given(SIZES, st.integers(0, 9))
def test_what_is_packed_comes_out_again_and_the_room_behind_it_is_zero(sizes, room):
    parts = drawn(sizes)
    into = np.full(sum(sizes) + room, 99, np.uint8)
    pack(parts, into)
    assert nbytes(parts) == sum(sizes)
    assert not into[sum(sizes):].any()
    found = [np.zeros(size, np.uint8) for size in sizes]
    unpack(into, found)
    assert all(map(np.array_equal, found, parts))


@given(SIZES, st.integers(1, 5))
def test_memory_is_cut_by_rows_into_parts_that_fill_it(sizes, row):
    data = drawn([row * sum(sizes)])[0]
    parts = split(data, sizes)
    assert [len(part) for part in parts] == [row * size for size in sizes]
    assert np.array_equal(np.concatenate([data[:0], *parts]), data)
    for part in parts:
        part[:] = 0
    assert not data.any()  # parts are the same memory


@given(st.integers(0, 1000), st.integers(1, 50))
def test_shares_differ_by_a_row_at_most_and_the_first_ones_are_larger(rows, ranks):
    found = shares(rows, ranks)
    assert (len(found), sum(found)) == (ranks, rows)
    assert max(found) - min(found) <= 1
    assert found == sorted(found, reverse=True)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300)), max_size=20))
def test_a_buffer_that_is_out_is_given_to_nobody_else(steps):
    buffers, out = Buffers(100), []
    for takes, size in steps:
        if takes:
            buffer = buffers.take(size)
            assert len(buffer) >= size
            assert not any(np.shares_memory(buffer, other) for other in out)
            out.append(buffer)
        elif out:
            buffers.give_back(out.pop())


def test_a_buffer_that_was_given_back_is_taken_again():
    buffers = Buffers(100)
    first = buffers.take(10)
    buffers.give_back(first)
    assert buffers.take(len(first)) is first
    assert buffers.take(10) is not first
