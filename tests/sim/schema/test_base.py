"""Base of all models of input files: known keys, printable text, words for mappings."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from sim.schema.base import Count, Line, Model, Name, NoneWord, one_of
from sim.schema.input_errors import Problem, problems


class Lamp(Model):
    """A mapping of two keys."""

    watts: Count
    shade: Annotated[Model | None, NoneWord()] = None


def refused(kind: object, value: object) -> Problem:
    """The one problem of a value."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    (problem,) = problems(caught.value, value)
    return problem


def test_an_unknown_key_is_refused_with_all_that_are_known() -> None:
    problem = refused(Lamp, {"watts": 3, "shad": None})
    assert (problem.says, problem.path, problem.at_key) == ("unknown key 'shad'", ("shad",), True)
    assert problem.allowed == "watts, shade"


@given(st.text(max_size=8))
def test_a_line_is_text_that_a_terminal_shows_on_one_line(text: str) -> None:
    """By Unicode's categories of control, format and separating characters."""
    odd = [one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    if odd:
        assert ascii(odd[0]) in refused(Line, text).says
    else:
        assert TypeAdapter(Line).validate_python(text) == text


@pytest.mark.parametrize("name", ["a", "h-0", "A_1.b+c", "x" * 64])
def test_a_name_has_letters_digits_and_few_signs(name: str) -> None:
    assert TypeAdapter(Name).validate_python(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "ä", "x" * 65])
def test_what_is_no_name_is_refused(name: str) -> None:
    assert refused(Name, name).allowed == (
        "letters, digits and . _ + -, at most 64, the first a letter or digit")


@pytest.mark.parametrize("count", [0, -1, 1_000_001, 1.0, "1", True])
def test_a_count_is_a_whole_number_from_one_to_a_million(count: object) -> None:
    assert refused(Count, count).says.startswith("found ")


def test_none_may_stand_for_a_mapping_and_nothing_else_may() -> None:
    assert Lamp.model_validate({"watts": 3, "shade": "none"}).shade is None
    problem = refused(Lamp, {"watts": 3, "shade": "nine"})
    assert (problem.says, problem.path) == ("found 'nine'", ("shade",))
    assert problem.allowed == "none, or a mapping of keys to values"


def test_a_value_that_fits_no_member_of_a_union_is_one_problem() -> None:
    kind = Annotated[Literal["auto"] | Count, one_of("auto, or a number", "auto")]
    for good in ("auto", 7):
        assert TypeAdapter(kind).validate_python(good) == good
    problem = refused(kind, "atuo")
    assert (problem.says, problem.allowed, problem.names) == (
        "found 'atuo'", "auto, or a number", ("auto",))


def test_a_model_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Lamp(watts=3).watts = 4  # type: ignore[misc]
