"""The tables a person reads: they fit, they mark, their parts add up."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sim.records.results import Breakdown, Expectation, Report, ScenarioResult
from sim.report.answer_table import outside, print_causes, print_explanation, print_report
from sim.report.numbers import apportion, percent, rate, shown_ms
from tests.support.report_samples import taco, two_jobs

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTHS = [60, 80, 100, 120, 200]


def shown(printer: Callable[..., None], report: object, width: int = 120, *,
          terminal: bool = False, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    printer(report, console=Console(file=stream, width=width, highlight=False,
                                    force_terminal=terminal, color_system=None))
    stream.flush()
    return raw.getvalue().decode(encoding)


def cells(text: str, name: str, gpus: int) -> list[str]:
    start = re.compile(rf"{re.escape(name)} +{gpus} ")
    line = next(line for line in text.splitlines() if start.match(line))
    return line[len(name):].replace(" %", "%").split()


@pytest.mark.parametrize("width", WIDTHS)
def test_every_row_is_one_line(width: int) -> None:
    report = taco()
    table = shown(print_report, report, width).split("---\n")[1].split("Compared with")[0]
    assert len([line for line in table.splitlines() if line.strip()]) == len(report.scenarios)


def test_wide_table_shows_everything() -> None:
    text = shown(print_report, taco(), 160)
    assert cells(text, "LightCC+HARP", 16) == [
        "16", "3339", "3513", "3652", "3478", "87%", "3562", "-2.4%", "predicted", "compute,",
        "stack", "cores", "588.8", "518.0", "70.8", "57.0"]
    assert "Tencent's TACO Train documentation" in text
    assert "LightCC+HARP, 16 GPUs:" not in text


@pytest.mark.parametrize("width", WIDTHS)
def test_exposed_time_and_interval_of_a_prediction_are_found_at_any_width(width: int) -> None:
    report = taco()
    text = " ".join(shown(print_report, report, width).split())
    assert "70.8 ms exposed; the published 3562 images/s leave 57.0 ms" in text or (
        "70.8 57.0" in text)
    assert "3339 to 3652 images/s, 30.0 to 95.0 ms exposed" in text or (
        "3339 3513 3652 3478" in text)
    assert text.count("over 24 draws of the uncertain parameters") == 1


def test_exposed_time_of_a_measured_figure_is_called_measured() -> None:
    row = replace(taco().scenarios[8], expect=Expectation(3562, "measured", 0.08, "us"))
    text = " ".join(shown(print_report, Report("t", 1, (row,)), 60).split())
    assert "the measured 3562 images/s leave 57.0 ms" in text


def test_a_sample_of_text_is_no_image() -> None:
    row = replace(taco().scenarios[8], tokens_per_s=1e6)
    text = " ".join(shown(print_report, Report("t", 1, (row,)), 60).split())
    assert "samples/s" in text
    assert "images/s" not in text


def test_columns_without_content_and_a_single_job_are_not_shown() -> None:
    row = replace(taco().scenarios[-1], expect=None, job="only")
    text = shown(print_report, Report("t", 1, (row,)))
    assert "published" not in text
    assert "P10" not in text
    assert "job" not in text


def test_several_jobs_are_listed_apart_and_disagreements_are_marked() -> None:
    text = shown(print_report, two_jobs())
    assert re.search(r"ecmp +b +16 +700 .*✗ -30\.7 %", text)
    assert "ecmp (b), 16 GPUs: 700 images/s differ from 1010 by 30.7 %" in text
    assert "✗" not in re.search(r"ecmp +a .*", text).group()  # type: ignore[union-attr]
    assert "plan (b), 16 GPUs: A fault stalled 4 flows for 50 ms." in text


def test_names_are_text_and_not_markup() -> None:
    row = replace(taco().scenarios[0], name="[bold]x[/nothing]")
    assert "[bold]x[/nothing]" in shown(print_report, Report("[red]t", 1, (row,)), 200)


@pytest.mark.parametrize("printer", [print_report, print_explanation])
def test_a_job_that_never_ends_is_shown(printer: Callable[..., None]) -> None:
    stuck = replace(taco().scenarios[0], images_per_s=0.0, step_s=math.inf,
                    breakdown=Breakdown(0.5, math.inf, 0, 0, 0))
    assert "inf" in shown(printer, Report("t", 1, (stuck,)))


def test_a_report_without_rows_prints_its_notes() -> None:
    assert shown(print_report, Report("t", 1, (), ("Nothing to compare.",))) == (
        "t\nNothing to compare.\n")
    assert shown(print_explanation, Report("t", 1, ())) == ""


def test_nan_is_outside_every_tolerance() -> None:
    assert outside(replace(taco().scenarios[0], images_per_s=math.nan))


times = st.floats(0, 10)


@given(st.lists(st.builds(Breakdown, st.floats(1e-3, 10), times, times, times, times),
                min_size=1, max_size=4))
def test_explained_parts_add_up_as_printed(breakdowns: list[Breakdown]) -> None:
    rows = tuple(ScenarioResult(f"s{i}", 8, "", 100.0, parts.step_s, parts)
                 for i, parts in enumerate(breakdowns))
    text = shown(print_explanation, Report("t", 1, rows), 140)
    for row in rows:
        numbers = cells(text, row.name, 8)
        step, parts, shares = numbers[1], numbers[2:12:2], numbers[3:12:2]
        decimals = len(step.split(".")[1])
        assert round(sum(map(float, parts)), decimals) == float(step)
        assert sum(map(int, shares)) == 100


@given(st.lists(st.floats(0, 1e6), max_size=8), st.integers(0, 1000))
def test_apportioned_parts_add_up_and_are_near(parts: list[float], units: int) -> None:
    whole = apportion(parts, units)
    total = math.fsum(parts)
    assert sum(whole) == (units if total > 0 else 0)
    for part, given_units in zip(parts, whole, strict=True):
        assert abs(given_units - (part / total * units if total else 0)) < 1 + 1e-6


@given(st.floats(0, 5), st.lists(st.floats(0, 5), min_size=1, max_size=4), st.integers(0, 6))
def test_shown_milliseconds_are_within_a_unit(compute: float, others: list[float],
                                              decimals: int) -> None:
    step = compute + math.fsum(others)
    texts = [float(text) for text in shown_ms(step, compute, others, decimals)]
    for exact, text in zip([step, compute, *others], texts, strict=True):
        assert abs(exact * 1e3 - text) < 1.6 * 10 ** -decimals + 1e-6


@pytest.mark.parametrize(("value", "text"), [
    (3562.4, "3562"), (99.96, "100"), (0, "0"), (12.345, "12.3"), (0.01234, "0.0123")])
def test_rates(value: float, text: str) -> None:
    assert rate(value) == text


def test_percent_has_no_negative_zero() -> None:
    assert percent(-0.00001, sign=True, decimals=1) == "+0.0 %"
    assert percent(-0.02, sign=True) == "-2 %"


def test_causes_stand_below_their_row_the_widest_first() -> None:
    text = shown(print_causes, taco())
    lines = [line.split() for line in text.splitlines() if "horovod" in line or "ports" in line]
    assert lines[0][:6] == ["LightCC+HARP", "16", "horovod.overlap", "0.1", "0.9", "3374"]
    assert lines[1][:4] == ["source", "ports", "3408", "3478"]
    assert len(lines[:-1]) == 2
    assert text.rstrip().endswith("those that ddp inherits are horovod's.")
    assert "No uncertain parameter changes any row" in shown(print_causes, two_jobs())
