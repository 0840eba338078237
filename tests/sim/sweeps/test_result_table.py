"""The result's columns, and the Pareto front against its definition."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.report.export import HEADER
from sim.schema.input_errors import Problem
from sim.sweeps.design import Point
from sim.sweeps.result_table import (
    check_columns,
    csv_text,
    idle_keys,
    make_table,
    non_dominated,
    parquet_bytes,
)
from sim.sweeps.study import Outcome


def row(**cells: Any) -> tuple[Any, ...]:
    return tuple(cells.get(name) for name in HEADER)


POINTS = [Point((("rate", rate), ("n", n))) for rate, n in
          (("1Gbps", 1), ("10Gbps", 2), ("100Gbps", 4), ("100Gbps", 8))]
RATES = (10.0, 50.0, 90.0)


def table(objectives: dict[str, str]) -> Any:
    outcomes = {point.changes: Outcome("k", point.changes, (row(name="s", gpus=8,
                                                                images_per_s=rate),))
                for point, rate in zip(POINTS, RATES, strict=False)}
    outcomes[POINTS[3].changes] = Outcome("k", POINTS[3].changes, error="too small")
    return make_table(POINTS, outcomes, objectives)


def test_a_refused_point_is_a_line_with_its_sentence() -> None:
    made = table({})
    assert made.columns["error"] == [None, None, None, "too small"]
    assert made.columns["images_per_s"] == [*RATES, None]
    assert made.failed == 1


def test_quantities_have_numbers_beside_them() -> None:
    assert table({}).columns["rate in SI"] == [1e9, 1e10, 1e11, 1e11]
    assert "n in SI" not in table({}).columns


def test_the_front_counts_quantities_by_their_size() -> None:
    assert table({"images_per_s": "max", "rate": "min"}).columns["pareto"] == [
        True, True, True, False]
    assert table({"images_per_s": "max"}).columns["pareto"] == [False, False, True, False]


def test_parquet_and_csv_say_the_same() -> None:
    made = table({"images_per_s": "max"})
    read = pq.read_table(io.BytesIO(parquet_bytes(made, {"harp.version": "1"})))
    assert read.schema.metadata[b"harp.version"] == b"1"
    assert read.to_pydict() == {name: list(cells) for name, cells in made.columns.items()}
    lines = csv_text(made).splitlines()
    assert lines[0].split(",") == list(made.columns)
    assert len(lines) == 1 + len(POINTS)


def test_types_do_not_depend_on_empty_cells() -> None:
    """Results of several sweeps can be read as one data set."""
    outcomes = {point.changes: Outcome("k", point.changes, error="no") for point in POINTS}
    empty = make_table(POINTS, outcomes, {})
    schemas = [pq.read_schema(io.BytesIO(parquet_bytes(made, {}))) for made in (empty, table({}))]
    assert schemas[0] == schemas[1]


def test_a_key_is_idle_where_lines_that_differ_in_it_alone_are_equal() -> None:
    points = [Point((("a", a), ("b", b), ("c", 10 * a + b))) for a in (1, 2) for b in (1, 2)]
    outcomes = {point.changes: Outcome("k", point.changes, (row(
        name="s", images_per_s=float(dict(point.settings)["b"])),)) for point in points}
    assert idle_keys(make_table([Point(point.settings[:2]) for point in points], {
        Point(point.settings[:2]).changes: outcomes[point.changes] for point in points}, {})) == [
            "a"]
    assert idle_keys(make_table(points, outcomes, {})) == []  # c differs wherever a does


@pytest.mark.parametrize(("key", "objective", "says"), [
    ("gpus", "n", "name of a column"), ("n", "image_per_s", "not a known column")])
def test_names_that_cannot_be_columns(key: str, objective: str, says: str) -> None:
    with pytest.raises(Problem, match=says):
        check_columns([Point(((key, 1),))], {objective: "max"})


@given(st.integers(1, 3).flatmap(lambda width: st.lists(
    st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, float("nan")]), min_size=width, max_size=width),
    min_size=1, max_size=25)))
def test_the_front_is_what_its_definition_says(rows: list[list[float]]) -> None:
    costs = np.array(rows)
    def dominated(one: Any) -> bool:
        return any((other <= one).all() and (other < one).any() for other in costs)
    expected = [bool(np.isfinite(one).all()) and not dominated(one) for one in costs]
    assert non_dominated(costs).tolist() == expected
