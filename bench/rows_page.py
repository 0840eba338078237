"""The rows of a bench as one HTML page: a table of all figures, and a chart of the ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.rows import Result

NAMES = ("id", "what")
"""Columns of text, which come first."""
MET, MISSED = "#0072B2", "#D55E00"


def bench_html(name: str, about: str, records: Sequence[Result], command: str) -> str:
    """Text of the page; figures that are no single number or text are left out."""
    from harp.html_page.tables_page import Part, tables_html

    head = list(dict.fromkeys([*NAMES, *(key for record in records for key, value in record.items()
                                         if isinstance(value, str | int | float))]))
    head = [key for key in head if any(key in record for record in records)]
    rows = [[_cell(record.get(key)) for key in head] for record in records]
    ratios = [record for record in records if isinstance(record.get("ratio"), int | float)]
    part = Part("Rows", [key.replace("_", " ") for key in head], rows,
                chart=_chart(ratios) if ratios else None,
                texts=sum(key in NAMES for key in head),
                says="Each value over its reference; orange where the row's target was missed.")
    return tables_html(f"python -m bench {name}", about.strip().split("\n")[0], [part], command)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.4g}" if isinstance(value, float) else str(value) if isinstance(
        value, str | int) else ""


def _chart(rows: Sequence[Result]) -> dict[str, Any]:
    bars = [{"value": round(row["ratio"], 4),
             "itemStyle": {"color": MET if row.get("ok", True) else MISSED}} for row in rows]
    return {"xAxis": {"type": "value"}, "tooltip": {"confine": True},
            "yAxis": {"type": "category", "inverse": True, "data": [row["id"] for row in rows],
                      "axisLabel": {"interval": 0, "fontSize": 11}},
            "grid": {"left": 140, "right": 28, "top": 20, "bottom": 40},
            "series": [{"type": "bar", "data": bars, "markLine": {
                "symbol": "none", "data": [{"xAxis": 1}], "label": {"show": False}}}]}
