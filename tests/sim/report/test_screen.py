"""Text tables that fit the terminal or file."""

from __future__ import annotations

import re

import pytest

from sim.report.answer_table import print_explanation, print_report
from tests.sim.report.test_answer_table import WIDTHS, cells, shown
from tests.support.report_samples import taco, two_jobs


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_screen_and_the_answer_is_always_there(width: int) -> None:
    text = shown(print_report, taco(), width)
    assert max(map(len, text.splitlines())) <= width
    row = cells(text, "LightCC+HARP", 16)
    assert row[0] == "16"
    assert {"3478", "3562"} <= set(row)
    assert "-2.4%" in row


def test_marks_and_bars_print_on_an_ascii_screen() -> None:
    assert "! -30.7 %" in shown(print_report, two_jobs(), encoding="ascii")
    assert re.search(r"#+=+", shown(print_explanation, taco(), encoding="ascii"))


def test_plain_text_has_no_escape_codes_and_no_trailing_blanks() -> None:
    text = shown(print_report, taco()) + shown(print_explanation, taco())
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line != line.rstrip()]
