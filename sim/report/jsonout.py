"""The answer as JSON, for programs; docs/output.md lists every key.

The same report gives the same bytes: keys keep the order below, floats carry nine significant
digits, text is UTF-8, and the file ends with a newline. What is infinite or unknown is null.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sim.report.numbers import rounded, rounded_difference

if TYPE_CHECKING:
    from sim.records.results import (
        Breakdown,
        Cause,
        CollectiveReport,
        Expectation,
        Interval,
        Origin,
        Report,
        ScenarioResult,
    )

VERSION = 2
"""Rises when a key changes its meaning or goes; new keys do not raise it."""


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
        } for row in report.rows],
    })


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
        "expect": None if row.expect is None else _expect(row.expect, row.expected_exposed_s),
        "error_pct": error_pct(row),
        "interval": None if row.interval is None else _interval(row.interval),
        "causes": [_cause(cause) for cause in row.causes],
        "breakdown_ms": breakdown_ms(row.breakdown),
        "limits": [{"name": limit.name, "ms": rounded_difference(limit.seconds * 1e3)}
                   for limit in row.limits],
        "notes": list(row.notes),
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
