"""A call of a module, taken apart: calls that differ in sizes and floats alone have one key."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harp.ttf.compiler.calls import Call, grown, linked, sliced


def call(*args, **kwargs):
    return Call.of(args, kwargs)


def test_arguments_come_together_again_as_they_were():
    x, y = torch.randn(3, 2), torch.randn(4)
    args, kwargs = call(x, [y, 3], scale=0.5, mode="sum").arguments()
    assert args[0] is x
    assert args[1][0] is y
    assert (args[1][1], kwargs) == (3, {"scale": 0.5, "mode": "sum"})


ALIKE = [(torch.ones(5, 2), 0.5), (torch.zeros(3, 7), -1.0)]
OTHERS = [(torch.ones(5, 2), 1), (torch.ones(5), 0.5), (torch.ones(5, 2).double(), 0.5),
          (torch.ones(5, 2, requires_grad=True), 0.5), (torch.ones(5, 2), "0.5"),
          (torch.ones(5, 2), [0.5])]


@pytest.mark.parametrize("other", OTHERS)
def test_calls_have_one_key_if_sizes_and_floats_alone_differ(other):
    first, second = (call(*each).key for each in ALIKE)
    assert first == second
    assert call(*other).key != first


def test_gradients_and_autocast_have_keys_of_their_own():
    def key():
        return call(torch.ones(2)).key

    keys = {key()}
    with torch.no_grad():
        keys.add(key())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        keys.add(key())
        assert call(torch.ones(2)).autocast == ("cpu", torch.bfloat16, True)
    assert len(keys) == 3
    assert key() in keys


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6))
def test_dimensions_that_vary_are_linked_where_they_were_always_equal(sizes):
    calls = [call(torch.empty(n, 4), torch.empty(m, n), torch.empty(m)) for n, m in sizes]
    wide, high = ((0, 0), (1, 1)), ((1, 0), (2, 0))
    columns = list(zip(*sizes, strict=True))
    varies = [pair for pair, seen in zip((wide, high), columns, strict=True) if len(set(seen)) > 1]
    if len(varies) == 2 and columns[0] == columns[1]:
        varies = [((0, 0), (1, 0), (1, 1), (2, 0))]
    assert sorted(tuple(sorted(group)) for group in linked([each.sizes for each in calls])
                  ) == sorted(varies)


@given(st.integers(1, 6), st.integers(0, 6), st.integers(0, 2))
def test_what_is_padded_is_zero_and_slices_off_again(size, more, place):
    shape = [2, 3, 4]
    shape[place] = size
    x = torch.randn(shape)
    padded = call("kept", x).padded([(1, place)], size + more)
    found = padded.leaves[1]
    assert padded.leaves[0] == "kept"
    assert found.shape[place] == size + more
    assert torch.equal(found.narrow(place, 0, size), x)
    assert not found.narrow(place, size, more).any()
    assert torch.equal(sliced({"rows": found}, [(0, place)], size)["rows"], x)


def test_the_dimensions_of_a_result_that_grow_with_the_call_are_found():
    small, large = ((torch.empty(n, 3), {"n": n, "each": torch.empty(3, n)}) for n in (3, 8))
    assert grown(small, large, (3, 8)) == [(0, 0), (2, 1)]


def test_floats_that_are_lifted_are_tensors_and_others_stay():
    given_call = call(0.1, torch.ones(2), 0.2, 3)
    assert given_call.floats == {0: 0.1, 2: 0.2}
    lifted = given_call.lifted([2])
    assert lifted.leaves[0] == 0.1
    assert (lifted.leaves[2].dtype, float(lifted.leaves[2])) == (torch.float64, 0.2)
    assert lifted.floats == {0: 0.1}


def test_a_copy_has_values_of_its_own_and_the_callers_need_of_gradients():
    x = torch.ones(3, requires_grad=True)
    copied = call(x, 2).copied()
    with torch.no_grad():
        x.zero_()
    assert copied.leaves[0].requires_grad
    assert copied.leaves[0].is_leaf
    assert copied.leaves[0].tolist() == [1, 1, 1]
