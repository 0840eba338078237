"""The summary of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.report.screen import console_for
from sim.sweeps.design import Point
from sim.sweeps.result_table import make_table
from sim.sweeps.study import Outcome
from sim.sweeps.summary import MOST_LINES, print_summary
from tests.sim.sweeps.test_result_table import row

if TYPE_CHECKING:
    import pytest


def printed(capsys: pytest.CaptureFixture[str], rates: list[float | None],
            objectives: dict[str, str] | None = None, bottleneck: str = "NIC") -> list[str]:
    """Lines of the summary of points with these rates; None: refused."""
    points = [Point((("n", number),)) for number in range(len(rates))]
    outcomes = {point.changes: Outcome("k", point.changes, () if rate is None else (
        row(name="s", gpus=8, images_per_s=rate, bottleneck=bottleneck),),
        "too small" if rate is None else None) for point, rate in zip(points, rates, strict=True)}
    print_summary(make_table(points, outcomes, objectives or {}), len(points),
                  console=console_for())
    return capsys.readouterr().out.splitlines()


def test_the_fastest_lines_come_first_and_the_rest_is_counted(capsys) -> None:
    rates = [float(1000 + 7 * (number * 11 % 20)) for number in range(20)]
    lines = printed(capsys, rates)
    assert lines[0] == f"fastest, {MOST_LINES} of 20 lines"
    shown = [float(line.split()[3]) for line in lines if line.endswith("NIC")]
    assert shown == sorted(rates, reverse=True)[:MOST_LINES]
    assert "20 points, 20 lines" in lines


def test_with_objectives_the_front_alone_is_shown(capsys) -> None:
    lines = printed(capsys, [10.0, 30.0, 20.0], {"images_per_s": "max", "n": "min"})
    assert lines[0] == "Pareto front, 2 of 2 lines"
    assert [line.split()[3] for line in lines if line.endswith("NIC")] == ["30", "10"]


def test_refused_points_are_counted_and_one_is_quoted(capsys) -> None:
    assert "2 points were refused (column error), e.g. too small" in printed(
        capsys, [10.0, None, None])
    assert "1 point was refused (column error), e.g. too small" in printed(capsys, [10.0, None])


def test_keys_and_objectives_without_effect_are_named(capsys) -> None:
    assert "No value changed a line: n" in printed(capsys, [10.0, 10.0])
    lines = printed(capsys, [10.0, 20.0], {"cost_day": "min", "images_per_s": "max"})
    assert "No Pareto front: no line has cost_day" in lines
