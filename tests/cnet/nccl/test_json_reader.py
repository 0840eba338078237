"""The plugin's reader of JSON, against Python's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.c_programs import build, library, run
from tests.support.levels import draws

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@pytest.fixture(scope="module")
def reads(tmp_path_factory):
    """Give what the reader says of a text."""
    folder = tmp_path_factory.mktemp("json")
    program = build(folder / "reader", ["tests/cnet/nccl/test_json_reader.c",
                                        "cnet/nccl/json_reader.c", str(library())])

    def read(text: str | bytes, *member: str) -> str:
        file = folder / "file.json"
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return run(program, str(file), *member).rstrip("\n")

    return read


@settings(max_examples=draws(30))
@given(VALUES, st.sampled_from([None, 2]))
def test_what_python_writes_is_good(reads, value: Any, indent):
    assert reads(json.dumps(value, indent=indent)) == "good"


@pytest.mark.parametrize("text", [
    "", "{", "[1,]", "[1 2]", '{"a" 1}', '{"a":1,}', '"a', "[1]]", "1 1", "{1:2}", "'a'", "]"])
def test_what_python_refuses_is_refused(reads, text):
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    assert reads(text) != "good"


def test_members_are_found_among_others(reads):
    text = json.dumps({"skip": [{"name": "inner"}, None], "name": "leaf0", "rank": 2**32 - 1})
    assert reads(text, "name") == "text leaf0\ngood"
    assert reads(text, "rank") == "number 4294967295\ngood"
    assert reads(text, "absent") == "good"


def test_the_line_of_what_is_wrong_is_said(reads):
    assert reads('{\n "a": 1,\n "b": nothing\n}').startswith("line 3: ")
    assert reads("[" * 10_000).startswith("line 1: ")


@pytest.mark.parametrize("number", ["4294967296", "-1", "1.5", "null"])
def test_other_numbers_than_were_asked_for_are_wrong(reads, number):
    assert reads(f'{{"rank": {number}}}', "rank").startswith("line 1: ")
