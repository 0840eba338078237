"""Columns of models of text: tokens/s, MFU and memory, where rows have them."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from sim.records.results import Report
from sim.report.answer_table import print_report
from tests.support.report_samples import taco, two_jobs


def printed(report, width=200):
    out = io.StringIO()
    print_report(report, console=Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_rows_of_text_say_tokens_and_mfu() -> None:
    text = printed(two_jobs())
    header, row = (next(line for line in text.splitlines() if word in line)
                   for word in ("tokens/s", "plan "))
    assert "MFU" in header
    assert {"1013760", "41", "118.0"} <= set(row.split())


def test_rows_of_images_have_no_such_columns() -> None:
    text = printed(taco())
    assert "tokens/s" not in text
    assert "MFU" not in text
    assert "GiB" not in text


def test_memory_that_is_not_all_known_is_not_shown() -> None:
    rows = two_jobs().scenarios
    partly = tuple(replace(row, memory=row.memory and replace(row.memory, activations=None))
                   for row in rows)
    assert "GiB" not in printed(Report("t", 1, partly))
