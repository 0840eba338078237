"""The nearest known name or file."""

from difflib import SequenceMatcher

from hypothesis import given, settings
from hypothesis import strategies as st

from harp.nearest import did_you_mean, nearest_name, nearest_path

NAMES = st.lists(st.text("abc", min_size=1, max_size=6), max_size=6)


@settings(max_examples=40)
@given(st.text("abc", max_size=6), NAMES)
def test_no_other_name_is_more_alike(name, known):
    near = nearest_name(name, known, 0)
    assert (near is None) == (known == [])
    if known:
        alike = [SequenceMatcher(None, one, name).ratio() for one in known]
        assert SequenceMatcher(None, near, name).ratio() == max(alike)


def test_names_that_are_not_alike_are_not_proposed():
    assert nearest_name("ring", ["tree", "rign"]) == "rign"
    assert nearest_name("ring", ["tree", "2d"]) is None
    assert did_you_mean("ring", ["rign"]) == "; did you mean 'rign'?"
    assert did_you_mean("ring", ["2d"]) == ""


def test_a_path_is_proposed_where_the_rest_of_it_exists(tmp_path):
    for folder in ("results", "resolts"):
        (tmp_path / folder).mkdir()
    (tmp_path / "results" / "a.json").touch()
    assert nearest_path(tmp_path / "resuls" / "a.json") == str(tmp_path / "results" / "a.json")
    assert nearest_path(tmp_path / "results" / "b.json") == str(tmp_path / "results" / "a.json")
    assert nearest_path(tmp_path / "resuls" / "zzz.yaml") is None
