"""Fragments of a model: parameters as one flat vector, and back."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from harp.lightcc.outer.fragment import Fragment

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), max_size=5)


def fragment_of(shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(len(shapes))
    return Fragment({f"p{number}": nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
                     for number, shape in enumerate(shapes)}, None)


@given(SHAPES)
def test_parameters_are_one_vector_and_come_back_in_their_shapes(shapes):
    fragment = fragment_of(shapes)
    values = [one.detach().clone() for one in fragment.parameters.values()]
    flat = fragment.flatten()
    assert len(flat) == fragment.elements == fragment.room == sum(one.numel() for one in values)
    assert torch.equal(flat, torch.cat([torch.zeros(0), *(one.reshape(-1) for one in values)]))
    back = fragment.gather(flat)
    assert [one.shape for one in back] == [one.shape for one in values]
    assert all(map(torch.equal, back, values))


@given(SHAPES, st.sampled_from([0.0, 0.25, 1.0]))
def test_what_is_written_is_mixed_with_the_share_of_what_is_there(shapes, share):
    fragment = fragment_of(shapes)
    before, new = fragment.flatten(), torch.arange(float(fragment.elements))
    fragment.write(new, share)
    torch.testing.assert_close(fragment.flatten(), share * before + (1 - share) * new)


def test_half_precision_travels_in_float32_and_is_written_in_its_own():
    fragment = fragment_of([(3,), (2, 2)], torch.bfloat16)
    assert fragment.flatten().dtype == torch.float32
    fragment.write(torch.full((7,), 1 / 3))
    first, *_ = fragment.parameters.values()
    assert first.dtype == torch.bfloat16
    assert first[0] == torch.tensor(1 / 3).bfloat16()


def test_parameters_with_new_memory_and_tensors_like_them_are_seen():
    fragment = fragment_of([(3,), (2, 2)])
    fragment.parameters["p0"].data = torch.full((3,), 5.0)
    assert fragment.flatten()[:3].tolist() == [5.0] * 3
    others = [torch.arange(3), torch.arange(3, 7).view(2, 2)]
    assert fragment.flatten(others).tolist() == list(range(7))
