"""Rows by index in C: numpy is the oracle, and every form gives the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.angelptm.rows import add_rows, dot_rows, take_rows
from tests.harp.lightcc.every_kernel import kernel_names, kernels

torch = pytest.importorskip("torch")

CASES = st.tuples(st.integers(0, 9), st.integers(0, 20), st.integers(0, 40), st.integers(0, 99))


def drawn(rows, n, width, seed):
    random = np.random.default_rng(seed)
    table, other = (random.standard_normal((k, width)).astype("f4") for k in (rows, n))
    index = random.integers(0, max(rows, 1), n if rows else 0)
    return table, other[:len(index)], index, random.standard_normal(len(index)).astype("f4")


def tensors(*arrays):
    return [torch.from_numpy(array) for array in arrays]


@pytest.mark.parametrize("form", kernel_names())
@given(CASES)
@settings(max_examples=60, deadline=None)
def test_numpy_does_the_same(form, case):
    table, other, index, weights = drawn(*case)
    with kernels(form):
        taken, scaled = (take_rows(*tensors(table, index), w) for w in (
            None, *tensors(weights)))
        added, plain = (add_rows(torch.zeros(table.shape), *tensors(other, index), w) for w in (
            *tensors(weights), None))
        dots = dot_rows(*tensors(table, other, index))
    assert (taken.numpy() == table[index]).all()
    np.testing.assert_array_equal(scaled.numpy(), table[index] * weights[:, None])
    for found, weight in ((added, weights), (plain, np.ones_like(weights))):
        wanted = np.zeros_like(table)
        np.add.at(wanted, index, other * weight[:, None])  # in the same order
        np.testing.assert_array_equal(found.numpy(), wanted)
    np.testing.assert_allclose(dots.numpy(), (table[index].astype("f8") * other).sum(1),
                               rtol=1e-4, atol=1e-4)


@given(CASES)
@settings(max_examples=30, deadline=None)
def test_every_form_gives_the_same_bits(case):
    table, other, index, _ = drawn(*case)
    found = []
    for form in kernel_names():
        with kernels(form):
            found.append(dot_rows(*tensors(table, other, index)).numpy())
    for one in found[1:]:
        np.testing.assert_array_equal(one.view("i4"), found[0].view("i4"))


def test_take_copies_bits_that_are_no_numbers():
    bits = torch.tensor([[0x7FA00001, -1], [3, 0x7F800001]], dtype=torch.int32)
    taken = take_rows(bits.view(torch.float32), torch.tensor([1, 0, 1]), None)
    assert (taken.view(torch.int32) == bits[[1, 0, 1]]).all()
