"""The answer as JSON, for programs, and as CSV, for spreadsheets (docs/use/output.md).

The same report gives the same bytes: keys keep the order below, floats carry nine significant
digits, text is UTF-8, and the file ends with a newline. An infinite or unknown value is null.

CSV has one line for each scenario row, with the numbers of the JSON output; a cell is empty where
JSON has null. Lines end with a newline; several notes of one row are joined by ``; ``.
"""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from sim.report.numbers import DAY_S, rounded, rounded_difference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sim.records.results import (
        Breakdown,
        Cause,
        CollectiveReport,
        CollectiveRow,
        Cost,
        Expectation,
        Interval,
        Memory,
        Origin,
        Report,
        ScenarioResult,
    )

    Cell = str | int | float | None

VERSION = 2
"""Version of the format; it rises when a key changes its meaning or disappears."""


def report_json(report: Report) -> str:
    """Text of the JSON document for a run's scenarios."""
    return _dump({
        "version": VERSION,
        "topology": report.topology,
        "seed": report.seed,
        **_origin(report.origin),
        "scenarios": [_scenario(row) for row in report.scenarios],
        "notes": list(report.notes),
        "warnings": [{"key": warned.key, "line": warned.line, "text": warned.text}
                     for warned in report.warnings],
    })


def collective_json(report: CollectiveReport) -> str:
    """Text of the JSON document for ``--collective``."""
    return _dump({
        "version": VERSION,
        "topology": report.topology,
        "seed": report.seed,
        **_origin(report.origin),
        "collective": report.collective,
        "ranks": report.ranks,
        "datatype": report.datatype,
        "rows": [{
            "algorithm": row.algorithm,
            "size_bytes": row.size_bytes,
            "count": row.count,
            "time_us": rounded(row.time_s * 1e6),
            "algbw_gb_per_s": rounded(row.algbw / 1e9),
            "busbw_gb_per_s": rounded(row.busbw / 1e9),
            "choice": row.choice,
            "interval": None if row.interval is None else _time_interval(row),
            "limits": [{"name": limit.name, "us": rounded_difference(limit.seconds * 1e6)}
                       for limit in row.limits],
            "causes": [{
                "parameter": cause.parameter,
                "low": rounded(cause.low),
                "high": rounded(cause.high),
                "busbw_gb_per_s": [rounded(cause.at_low / 1e9), rounded(cause.at_high / 1e9)],
            } for cause in row.causes],
        } for row in report.rows],
        "notes": list(report.notes),
    })


def _time_interval(row: CollectiveRow) -> dict[str, Any]:
    assert row.interval is not None
    assert row.busbw_interval is not None
    return {
        "time_us": [rounded(seconds * 1e6) for seconds in (
            row.interval.low_s, row.interval.median_s, row.interval.high_s)],
        "busbw_gb_per_s": [rounded(busbw / 1e9) for busbw in row.busbw_interval],
        "draws": row.interval.draws,
    }


def _dump(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _origin(origin: Origin) -> dict[str, Any]:
    return {
        "file": {"sha256": origin.sha256 or None, "set": list(origin.changes)},
        "parameters": [{
            "name": parameter.name,
            "value": rounded(parameter.value),
            "low": rounded(parameter.low),
            "high": rounded(parameter.high),
            "confidence": parameter.confidence,
            "source": parameter.source,
        } for parameter in origin.parameters],
    }


def _scenario(row: ScenarioResult) -> dict[str, Any]:
    return {
        "name": row.name,
        "gpus": row.gpus,
        "job": row.job,
        "images_per_s": rounded(row.images_per_s),
        "step_ms": rounded(row.step_s * 1e3),
        "efficiency": rounded(row.efficiency),
        "tokens_per_s": rounded(row.tokens_per_s),
        "mfu": rounded(row.mfu),
        "memory_bytes": None if row.memory is None else _memory(row.memory),
        "expect": None if row.expect is None else _expect(row.expect, row.expected_exposed_s),
        "error_pct": error_pct(row),
        "interval": None if row.interval is None else _interval(row.interval),
        "causes": [_cause(cause) for cause in row.causes],
        "breakdown_ms": breakdown_ms(row.breakdown),
        "limits": [{"name": limit.name, "ms": rounded_difference(limit.seconds * 1e3)}
                   for limit in row.limits],
        "cost": None if row.cost is None else _cost(row, row.cost),
        "notes": list(row.notes),
    }


def _memory(memory: Memory) -> dict[str, int | None]:
    return {"weights": memory.weights, "gradients": memory.gradients,
            "optimizer": memory.optimizer, "activations": memory.activations,
            "buffers": memory.buffers, "total": memory.total}


def _cost(row: ScenarioResult, cost: Cost) -> dict[str, Any]:
    whole = row.whole_s
    same_loss = [seconds / DAY_S for seconds in row.same_loss_s]
    return {
        "currency": cost.currency,
        "step": rounded(cost.of(row.step_s)),
        "day": rounded(cost.day),
        "goal": cost.goal or None,
        "goal_days": rounded(whole[0] / DAY_S) if whole else None,
        "goal_cost": rounded(cost.of(whole[0])) if whole else None,
        "goal_cost_interval": [rounded(cost.of(seconds)) for seconds in whole[1:]] or None,
        "same_loss_times": rounded(cost.same_loss),
        "same_loss_days": rounded(same_loss[0]) if same_loss else None,
        "same_loss_days_interval": [rounded(days) for days in same_loss[1:]] or None,
    }


def breakdown_ms(breakdown: Breakdown) -> dict[str, float | None]:
    """Return the five parts of a step in milliseconds, in the order of all outputs."""
    return {
        "compute": rounded_difference(breakdown.compute_s * 1e3),
        "exposed_transfer": rounded_difference(breakdown.exposed_transfer_s * 1e3),
        "selection": rounded_difference(breakdown.selection_s * 1e3),
        "latency": rounded_difference(breakdown.latency_s * 1e3),
        "message": rounded_difference(breakdown.message_s * 1e3),
    }


def error_pct(row: ScenarioResult) -> float | None:
    """Return the relative error against ``expect`` in percent, or None."""
    return None if row.error is None else rounded_difference(row.error * 100)


def _expect(expect: Expectation, exposed_s: float | None) -> dict[str, Any]:
    return {
        "images_per_s": rounded(expect.images_per_s),
        "exposed_ms": None if exposed_s is None else rounded_difference(exposed_s * 1e3),
        "kind": expect.kind,
        "within": rounded(expect.within),
        "source": expect.source,
    }


def _interval(interval: Interval) -> dict[str, Any]:
    return {
        "images_per_s": [rounded(rate) for rate in (
            interval.low_images_per_s, interval.median_images_per_s, interval.high_images_per_s)],
        "exposed_ms": [rounded(seconds * 1e3) for seconds in (
            interval.low_exposed_s, interval.median_exposed_s, interval.high_exposed_s)],
        "draws": interval.draws,
        "refitted": interval.refitted,
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "parameter": cause.parameter,
        "low": rounded(cause.low),
        "high": rounded(cause.high),
        "images_per_s": [rounded(cause.at_low), rounded(cause.at_high)],
    }


HEADER = (
    "name", "gpus", "job", "images_per_s", "efficiency", "step_ms",
    "compute_ms", "exposed_transfer_ms", "selection_ms", "latency_ms", "message_ms",
    "p10_images_per_s", "p50_images_per_s", "p90_images_per_s",
    "p10_exposed_ms", "p50_exposed_ms", "p90_exposed_ms",
    "expect_images_per_s", "expect_exposed_ms", "expect_kind", "expect_within",
    "expect_source", "error_pct", "bottleneck", "bottleneck_ms", "runner_up", "runner_up_ms",
    "notes", "tokens_per_s", "mfu", "memory_bytes", "currency", "cost_step", "cost_day",
    "cost_goal", "same_loss_days", "p10_same_loss_days", "p90_same_loss_days",
)
COLLECTIVE_HEADER = (
    "collective", "ranks", "datatype", "algorithm", "size_bytes", "count", "time_us",
    "algbw_gb_per_s", "busbw_gb_per_s", "choice", "p10_busbw_gb_per_s", "p50_busbw_gb_per_s",
    "p90_busbw_gb_per_s", "bottleneck", "bottleneck_us",
)


def report_csv(report: Report) -> str:
    """CSV text of a run's scenarios, with a header line."""
    return _table(HEADER, (row_cells(row) for row in report.scenarios))


def collective_csv(report: CollectiveReport) -> str:
    """CSV text of ``--collective``: one line for each size and algorithm."""
    return _table(COLLECTIVE_HEADER, (
        (report.collective, report.ranks, report.datatype, row.algorithm, row.size_bytes, row.count,
         rounded(row.time_s * 1e6), rounded(row.algbw / 1e9), rounded(row.busbw / 1e9),
         row.choice, *(rounded(busbw / 1e9) for busbw in row.busbw_interval or ()),
         *[None] * (0 if row.busbw_interval else 3),
         *((row.limits[0].name, rounded(row.limits[0].seconds * 1e6)) if row.limits
           else (None, None)))
        for row in report.rows))


def _table(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def row_cells(row: ScenarioResult) -> tuple[Cell, ...]:
    """Cells of one row under `HEADER`."""
    return (row.name, row.gpus, row.job, rounded(row.images_per_s), rounded(row.efficiency),
            rounded(row.step_s * 1e3), *breakdown_ms(row.breakdown).values(), *_interval_cells(row),
            *_expect_cells(row), error_pct(row), *_limits(row), "; ".join(row.notes),
            rounded(row.tokens_per_s), rounded(row.mfu),
            None if row.memory is None else row.memory.total,
            *_cost_cells(row))


def _cost_cells(row: ScenarioResult) -> tuple[Cell, ...]:
    if row.cost is None:
        return (None,) * 7
    written = _cost(row, row.cost)
    return (row.cost.currency, written["step"], written["day"], written["goal_cost"],
            written["same_loss_days"], *(written["same_loss_days_interval"] or (None, None)))


def _limits(row: ScenarioResult) -> tuple[Cell, ...]:
    cells: list[Cell] = [cell for limit in row.limits[:2]
                         for cell in (limit.name, rounded_difference(limit.seconds * 1e3))]
    return (*cells, *[None] * (4 - len(cells)))


def _expect_cells(row: ScenarioResult) -> tuple[Cell, ...]:
    expect, exposed_s = row.expect, row.expected_exposed_s
    if expect is None or exposed_s is None:
        return (None, None, None, None, None)
    return (rounded(expect.images_per_s), rounded_difference(exposed_s * 1e3), expect.kind,
            rounded(expect.within), expect.source)


def _interval_cells(row: ScenarioResult) -> tuple[Cell, ...]:
    interval = row.interval
    if interval is None:
        return (None,) * 6
    return (rounded(interval.low_images_per_s), rounded(interval.median_images_per_s),
            rounded(interval.high_images_per_s), rounded(interval.low_exposed_s * 1e3),
            rounded(interval.median_exposed_s * 1e3), rounded(interval.high_exposed_s * 1e3))
