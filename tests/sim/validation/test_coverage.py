"""Margins of intervals: what they hold, and that no source sees its own."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.answer.margins import Margin
from sim.validation.case import case_files, load_case
from sim.validation.coverage import KINDS, against_others, as_shipped, derive, moved, stale
from sim.validation.predictions import COVERED_TARGET, Prediction
from tests.support import ROOT

FIGURES = {figure.quantity: figure for path in case_files() for figure in load_case(path).figures}


def row(low, high, source="a", quantity="busbw", value=None, apart=""):
    """Give a row whose interval and prediction are these shares of what was published."""
    figure = FIGURES[quantity]
    value = min(max(1.0, low), high) if value is None else value
    return Prediction("c", source, 0, figure, *(share * figure.value
                                                for share in (value, low, high, value)),
                      case_apart=apart)


def test_a_margin_is_what_intervals_miss_by():
    """Ten sources: one lies far below its interval, and one above; each is a tenth."""
    rows = [row(0.8, 1.2, str(number)) for number in range(8)]
    rows += [row(1.5, 2.0, "below"), row(0.5, 0.8, "above")]
    assert derive(rows) == pytest.approx((math.log(1.5), 0.0, math.log(1 / 0.8)))
    assert derive(rows[:8]) == (0.0, 0.0, 0.0)
    assert derive([]) == (0.0, 0.0, 0.0)


def test_a_row_that_its_source_calls_too_low_moves_no_margin():
    rows = [row(0.8, 1.2, str(number)) for number in range(4)]
    odd = row(2.0, 3.0, "odd", apart="it is too low")
    assert derive([*rows, odd]) == derive(rows) != derive([*rows, row(2.0, 3.0, "odd")])
    assert against_others([*rows, odd])[-1].apart == "it is too low"


def test_predictions_that_are_too_fast_move_by_the_median_of_others():
    rows = [row(0.5, 2.0, str(number), value=1.0 + number / 10) for number in range(5)]
    assert derive(rows).middle == pytest.approx(-math.log(1.2))
    assert [found.value / found.figure.value for found in against_others(rows[:4])] == (
        pytest.approx([1.0 / 1.2, 1.1 / 1.2, 1.2 / 1.1, 1.3 / 1.1]))


def test_a_prediction_that_nothing_uncertain_moves_stays():
    rows = [row(0.5, 2.0, str(number), value=1.5) for number in range(5)] + [row(1.1, 1.1, "sure")]
    sure = against_others(rows)[-1]
    assert sure.value == rows[-1].value
    assert derive(rows).middle == pytest.approx(-math.log(1.5))


@given(st.lists(st.floats(0.6, 1.9), min_size=1, max_size=9, unique=True).filter(
    lambda values: len(values) % 2 == 1), st.sampled_from(["time", "samples_per_s"]))
def test_as_many_sources_are_slower_than_the_prediction_as_faster(values, quantity):
    rows = [row(0.01, 100.0, str(number), quantity, value) for number, value in enumerate(values)]
    margin = derive(rows)
    errors = [moved(each, margin).error for each in rows]
    assert sum(error > 1e-9 for error in errors) == sum(error < -1e-9 for error in errors)


def test_a_source_counts_once_however_many_rows_it_has():
    few = [row(0.9, 1.1, str(number)) for number in range(20)] + [row(2.0, 3.0, "odd")]
    many = few[:-1] + [row(2.0, 3.0, "odd")] * 50
    assert derive(few) == derive(many) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("quantity", ["time", "busbw", "samples_per_s"])
def test_a_time_is_widened_as_its_speed(quantity):
    """A margin below makes speeds lower, hence times longer."""
    found = moved(row(0.9, 1.1, quantity=quantity), Margin(math.log(2), math.log(0.8), 0.0))
    published = FIGURES[quantity].value
    shares = (found.low / published, found.value / published, found.high / published)
    assert shares == pytest.approx((0.9, 1.25, 2.2) if quantity == "time" else (0.45, 0.8, 1.1))


def test_no_source_sees_its_own_rows():
    """The one odd source gets the others' margin, which is none, and the others get its."""
    rows = [row(0.9, 1.1, "fine"), row(2.0, 3.0, "odd")]
    fine, odd = against_others(rows)
    assert (odd.low, odd.high) == (rows[1].low, rows[1].high)
    assert not odd.covered
    assert fine.low == pytest.approx(0.9 / 2.0 * fine.figure.value)
    moved = against_others([rows[0], row(4.0, 5.0, "odd")])
    assert moved[1].low == pytest.approx(4.0 * odd.figure.value)


def test_kinds_have_margins_of_their_own():
    rows = [row(0.9, 1.1, "a"), row(1.5, 2.0, "b"), row(0.9, 1.1, "c", "samples_per_s")]
    assert against_others(rows)[2] == rows[2]
    assert [kind.name for kind in KINDS] == ["training", "collectives"]


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.05, 20), st.floats(0, 2),
       st.floats(-2, 2), st.floats(0, 2), st.sampled_from(["time", "busbw", "samples_per_s"]))
def test_every_interval_holds_its_prediction(a, b, value, below, middle, above, quantity):
    found = moved(row(min(a, b), max(a, b), quantity=quantity, value=value),
                  Margin(below, middle, above))
    assert found.low <= found.at_values <= found.high
    assert found.low <= found.value * (1 + 1e-9)
    assert found.value <= found.high * (1 + 1e-9)
    assert found.low <= min(a, b) * found.figure.value * (1 + 1e-9)
    assert found.high >= max(a, b) * found.figure.value * (1 - 1e-9)


def test_a_shipped_margin_that_rows_do_not_give_is_stale():
    rows = [row(9.0, 10.0, str(number)) for number in range(9)]
    (sentence,) = [text for text in stale(rows) if "collectives" in text]
    assert f"Margin({math.log(9):.3f}, {-math.log(9):.3f}, 0.000); sim" in sentence
    assert "sim/answer/margins.py" in sentence


def test_a_new_row_gets_the_shipped_margin():
    margin = KINDS[0].shipped
    (found,) = as_shipped([row(0.9, 1.1, quantity="samples_per_s")])
    assert found.low == pytest.approx(0.9 * math.exp(-margin.below) * found.figure.value)


@pytest.mark.parametrize("kind", ["training", "collectives"])
def test_the_page_says_that_left_out_sources_are_covered(kind):
    """Each source's rows against margins of all others, as the issue of trust asks."""
    text = (ROOT / "docs" / "results" / "validation.md").read_text("utf-8")
    found = re.search(rf"of them {kind}, from (\d+) sources.*?hold (\d+) % of them .*?, "
                      r"(\d+) % where", text)
    assert found is not None, (
        "run: python -m sim.validate published --page docs/results/validation.md")
    low, high = COVERED_TARGET
    assert int(found[1]) >= 12
    assert low <= int(found[2]) / 100 <= high
    assert low <= int(found[3]) / 100 <= high
