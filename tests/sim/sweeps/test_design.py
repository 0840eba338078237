"""The points of a sweep: every combination once, draws within bounds, clear errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sim.schema.input_errors import Problem, TopologyError
from sim.schema.source import parse_value
from sim.schema.units import RATE
from sim.sweeps.design import Point, points, samples
from sim.sweeps.sweep_file import SweepFile, read_sweep

if TYPE_CHECKING:
    from pathlib import Path


def sweep(**design: Any) -> SweepFile:
    return SweepFile.model_validate({"topology": "t.yaml", **design})


def settings(**design: Any) -> list[dict[str, Any]]:
    return [dict(point.settings) for point in points(sweep(**design))]


def test_a_grid_has_every_combination_once() -> None:
    assert settings(grid={"a": [1, 2, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]


def test_fixed_settings_come_first_and_a_point_may_change_them() -> None:
    assert settings(set={"seed": 3, "a": 1}, list=[{"b": 2}, {"a": 5}]) == [
        {"seed": 3, "a": 1, "b": 2}, {"seed": 3, "a": 5}]


def test_draws_stay_within_their_bounds_and_keep_their_unit() -> None:
    drawn = settings(random={"points": 300, "keys": {
        "rate": {"low": "10Gbps", "high": "400Gbps", "scale": "log"},
        "spines": {"low": 2, "high": 8}, "share": {"low": 0.5, "high": 1}, "model": ["a", "b"]}})
    rates = sorted(RATE.parse(one["rate"]) for one in drawn)
    assert rates[0] >= 10e9
    assert rates[-1] <= 400e9
    assert 40e9 < rates[len(rates) // 2] < 100e9  # the geometric mean of the bounds is 63
    assert {one["spines"] for one in drawn} == set(range(2, 9))
    assert all(isinstance(one["share"], float) and 0.5 <= one["share"] <= 1 for one in drawn)
    assert {one["model"] for one in drawn} == {"a", "b"}


def test_more_points_begin_with_the_same_ones() -> None:
    def drawn(count: int) -> list[dict[str, Any]]:
        return settings(random={"points": count, "seed": 5, "keys": {"x": {"low": 0.0, "high": 1}}})
    assert drawn(20)[:7] == drawn(7)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8)
                    | st.floats(allow_nan=False, allow_infinity=False, width=32),
                    lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def test_a_change_gives_its_value_back(value: Any) -> None:
    (change,) = Point((("key", value),)).changes
    try:
        read = parse_value(change.removeprefix("key="), "").plain()
    except TopologyError:  # control characters, which no file may have
        return
    assert read == value


def test_samples_have_each_value_and_bound() -> None:
    seen = [dict(point.settings) for point, _ in samples(sweep(random={"points": 1, "keys": {
        "a": [1, 2], "b": {"low": "1Gbps", "high": "2Gbps"}}}))]
    assert {one["a"] for one in seen} == {1, 2}
    assert {one["b"] for one in seen} == {"1Gbps", "2Gbps"}


@pytest.mark.parametrize(("keys", "says"), [
    ({"a": 3}, "found 3"),
    ({"a": []}, "found an empty list"),
    ({"a": {"low": "1Gbps", "high": "2ms"}}, "low is in 'Gbps' and high in 'ms'"),
    ({"a": {"low": 2, "high": 2}}, "low is 2 and high 2"),
    ({"a": {"low": 0, "high": 2, "scale": "log"}}, "low is 0"),
    ({"a": {"low": "x", "high": 2}}, "found 'x'")])
def test_bounds_that_make_no_sense_are_named(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(Problem, match=says) as caught:
        points(sweep(random={"points": 1, "keys": keys}))
    assert caught.value.path == ("random", "keys", "a")


def test_a_grid_that_is_too_large_is_refused_before_it_is_built() -> None:
    with pytest.raises(Problem, match="1,000,000,000,000 points"):
        points(sweep(grid={key: list(range(1000)) for key in "abcd"}))


@pytest.mark.parametrize(("content", "says"), [
    ({"topology": "t.yaml"}, "no points in one sweep"),
    ({"topology": "t.yaml", "grid": {"a": [1]}, "list": [{}]}, "grid and list in one sweep"),
    ({"topology": "t.yaml", "grid": {"a.b": [1], "a": [{"b": 2}]}}, "'a.b' has no effect"),
    ({"topology": "t.yaml", "list": [{"a": 1}, {"a.b": 1, "a[b]": 2}]}, r"list\[1\].*'a.b' has no"),
    ({"topology": "t.yaml", "set": {"a[0].b": 1}, "grid": {"a": [[]]}}, r"'a\[0\].b' has no"),
    ({"topology": "t.yaml", "random": {"points": 1, "keys": {"a.b": [1], "a": [2]}}}, "no effect"),
    ({"topology": "t.yaml", "gird": {"a": [1]}}, "did you mean 'grid'"),
    ({"topology": "t.yaml", "grid": {"a": [1]}, "objectives": {"x": "best"}}, "max, min"),
    ({"grid": {"a": [1]}}, "topology: is missing")])
def test_a_wrong_file_is_one_sentence(tmp_path: Path, content: dict[str, Any], says: str) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(TopologyError, match=says):
        read_sweep(path)


def test_parts_after_the_whole_and_a_fixed_key_again_are_meant(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"topology": "t.yaml", "set": {"seed": 1}, "grid": {
        "a": [{"b": 1, "c": 2}], "a.b": [3], "ab": [4], "seed": [5]}}, sort_keys=False))
    assert len(points(read_sweep(path)[0])) == 1
