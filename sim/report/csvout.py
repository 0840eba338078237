"""The answer as CSV: one line for each scenario row, for spreadsheets and data frames.

The numbers are those of the JSON output, at the same nine significant digits; a cell is empty where
JSON has null. Lines end with a newline; several notes of one row are joined by ``; ``.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from sim.report.jsonout import breakdown_ms, error_pct
from sim.report.numbers import rounded, rounded_difference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sim.records.results import CollectiveReport, Report, ScenarioResult

    Cell = str | int | float | None

HEADER = (
    "name", "gpus", "job", "images_per_s", "efficiency", "step_ms",
    "compute_ms", "exposed_transfer_ms", "selection_ms", "latency_ms", "message_ms",
    "p10_images_per_s", "p50_images_per_s", "p90_images_per_s",
    "p10_exposed_ms", "p50_exposed_ms", "p90_exposed_ms",
    "expect_images_per_s", "expect_exposed_ms", "expect_kind", "expect_within",
    "expect_source", "error_pct", "bottleneck", "bottleneck_ms", "runner_up", "runner_up_ms",
    "notes",
)
COLLECTIVE_HEADER = (
    "collective", "ranks", "datatype", "algorithm", "size_bytes", "count", "time_us",
    "algbw_gb_per_s", "busbw_gb_per_s", "choice",
)


def report_csv(report: Report) -> str:
    """CSV text of a run's scenarios, with a header line."""
    return _table(HEADER, (_cells(row) for row in report.scenarios))


def collective_csv(report: CollectiveReport) -> str:
    """CSV text of ``--collective``: one line for each size and algorithm."""
    return _table(COLLECTIVE_HEADER, (
        (report.collective, report.ranks, report.datatype, row.algorithm, row.size_bytes, row.count,
         rounded(row.time_s * 1e6), rounded(row.algbw / 1e9), rounded(row.busbw / 1e9),
         row.choice)
        for row in report.rows))


def _table(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def _cells(row: ScenarioResult) -> tuple[Cell, ...]:
    return (row.name, row.gpus, row.job, rounded(row.images_per_s), rounded(row.efficiency),
            rounded(row.step_s * 1e3), *breakdown_ms(row.breakdown).values(), *_interval(row),
            *_expect(row), error_pct(row), *_limits(row), "; ".join(row.notes))


def _limits(row: ScenarioResult) -> tuple[Cell, ...]:
    cells: list[Cell] = [cell for limit in row.limits[:2]
                         for cell in (limit.name, rounded_difference(limit.seconds * 1e3))]
    return (*cells, *[None] * (4 - len(cells)))


def _expect(row: ScenarioResult) -> tuple[Cell, ...]:
    expect, exposed_s = row.expect, row.expected_exposed_s
    if expect is None or exposed_s is None:
        return (None, None, None, None, None)
    return (rounded(expect.images_per_s), rounded_difference(exposed_s * 1e3), expect.kind,
            rounded(expect.within), expect.source)


def _interval(row: ScenarioResult) -> tuple[Cell, ...]:
    interval = row.interval
    if interval is None:
        return (None,) * 6
    return (rounded(interval.low_images_per_s), rounded(interval.median_images_per_s),
            rounded(interval.high_images_per_s), rounded(interval.low_exposed_s * 1e3),
            rounded(interval.median_exposed_s * 1e3), rounded(interval.high_exposed_s * 1e3))
