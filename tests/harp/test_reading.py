"""Files that a person may have edited: what is wrong in one is one sentence."""

import json

import pytest

from harp.reading import FileError, parse, read_bytes


@pytest.mark.parametrize(("text", "sentence"), [
    ("", "line 1, column 1"), ("[" * 200_000, "nested too deeply"), ("NaN", "NaN is no number"),
    ("9" * 5000, "too many digits"), (b"\xff", "not UTF-8")])
def test_a_file_that_is_no_json_is_one_sentence(text, sentence):
    with pytest.raises(FileError, match=sentence):
        parse(text)


@pytest.mark.parametrize(("value", "read", "sentence"), [
    (4_000_000_000, lambda node: node.whole(0, 7), "a.b is 4000000000: a whole number from 0 to 7"),
    (True, lambda node: node.whole(0, 7), "a.b is true: a whole number"),
    (1.5, lambda node: node.whole(0, 7), "a.b is 1.5: a whole number"),
    ("1", lambda node: node.number(), 'a.b is "1": a number is possible'),
    ("10.0.0.1:99999", lambda node: node.address(), "an address of a host and a port"),
    ("10.0.0.1:0", lambda node: node.address(), "an address of a host and a port"),
    ("239.1.1.1:7000", lambda node: node.address(), "an address of a host and a port"),
    ("Simpel", lambda node: node.one_of("Simple", "LL"), "did you mean Simple"),
    ({"ranc": 1}, lambda node: node["rank"], "rank is missing in a.b; there is ranc"),
    ("x" * 1000, lambda node: node.each(), "xxx…: a list is possible"),
])
def test_a_wrong_value_is_named_with_its_place(value, read, sentence):
    with pytest.raises(FileError, match=sentence):
        read(parse(json.dumps({"a": {"b": value}}))["a"]["b"])


def test_a_file_without_end_is_not_read_for_ever() -> None:
    assert read_bytes("/dev/null") == b""
    with pytest.raises(OSError, match="File too large"):
        read_bytes("/dev/zero", 1 << 20)
