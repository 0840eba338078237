"""Thresholds of the controller: every one is positive."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harp.ttf.amp.thresholds import Policy

NAMES = [field.name for field in fields(Policy)]


@given(st.sampled_from(NAMES), st.floats(min_value=1e-9, max_value=1e9))
def test_a_positive_value_is_taken_and_the_others_stay(name, value):
    policy = Policy(**{name: value})
    assert getattr(policy, name) == value
    assert all(getattr(policy, other) == getattr(Policy(), other)
               for other in NAMES if other != name)


@pytest.mark.parametrize("value", [0, -1, -0.5, float("nan")])
@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_is_not_positive_is_refused_by_its_name(name, value):
    with pytest.raises(ValueError, match=f"^Policy: {name} is {value}; it must be positive$"):
        Policy(**{name: value})
