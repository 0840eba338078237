"""JSON of input files, beside the standard reader."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.schema import TopologyError
from sim.schema.json_text import parse_json

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner,
                                                                max_size=3), max_leaves=8)


@given(plain, st.booleans())
def test_what_was_written_is_read(value: object, foreign: bool) -> None:
    assert parse_json(json.dumps(value), "x.json", foreign=foreign) == value
    assert parse_json(json.dumps(value).encode(), "x.json", foreign=foreign) == value


@pytest.mark.parametrize(("text", "sentence"), [
    ('{\n"a" 1}', "x.json:2:5: is not JSON: Expecting ':' delimiter"),
    (b'"\xff"', "x.json: is not JSON: not UTF-8"),
    ("[" * 200_000, "x.json: is not JSON: nested too deeply"),
    ("9" * 5000, "x.json: is not JSON: a number has too many digits")])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_text_that_is_no_json_is_refused_at_its_place(text: str | bytes, sentence: str,
                                                        foreign: bool) -> None:
    with pytest.raises(TopologyError) as caught:
        parse_json(text, "x.json", foreign=foreign)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(("text", "sentence"), [
    ('{"a": NaN}', "x.json: is not JSON: NaN is not a number"),
    ('{"a": -Infinity}', "x.json: is not JSON: -Infinity is not a number"),
    ('[{"a": 1, "b": 2, "a": 1}]', "x.json: key 'a' stands twice; allowed: each key once")])
def test_what_other_programs_write_is_refused_but_in_their_files(text: str,
                                                                 sentence: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse_json(text, "x.json")
    assert str(caught.value) == sentence
    assert repr(parse_json(text, "x.json", foreign=True)) == repr(json.loads(text))
