"""The measurements of `harp perf` as one HTML page: rate and delay by size, and the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harp.html_page.tables_page import Part, tables_html

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harp.cli.perf import Row, Speed

HARP, TCP = "#0072B2", "#D55E00"


def perf_html(rows: Sequence[Row], description: str, command: str) -> str:
    """Text of the page."""
    beside = any(row.tcp for row in rows)
    head = ["bytes", "messages", "us a message", "GB/s", "p50 us", "p99 us", "CPU ns/B",
            "lost packets", *(["TCP GB/s", "TCP p50 us", "TCP p99 us"] if beside else [])]
    table = [_cells(row) for row in rows]
    parts = [Part("Rate", head, table, _chart(rows, "GB/s", lambda one: one.algbw_gbytes),
                  "Payload in GB/s by the size of a message, one way.", 0),
             Part("Delay", ["bytes", "p50 us", "p99 us"], [
                 [str(row.size), f"{row.p50_us:.4g}", f"{row.p99_us:.4g}"] for row in rows],
                  _chart(rows, "us", lambda one: one.p50_us),
                  "Half a round trip by the size of a message, median.", 0)]
    return tables_html("harp perf", description, parts, command)


def _cells(row: Row) -> list[str]:
    figures = (row.time_us, row.algbw_gbytes, row.p50_us, row.p99_us, row.cpu_ns_per_byte)
    beside = (row.tcp.algbw_gbytes, row.tcp.p50_us, row.tcp.p99_us) if row.tcp else ()
    return [str(row.size), str(row.messages), *(f"{one:.4g}" for one in figures), str(row.lost),
            *(f"{one:.4g}" for one in beside)]


def _chart(rows: Sequence[Row], unit: str, of: Callable[[Speed], float]) -> dict[str, Any]:
    shown = [row for row in rows if row.size]  # the axis is logarithmic
    lines = {"HARP": (HARP, [[row.size, of(row)] for row in shown]),
             "kernel TCP": (TCP, [[row.size, of(row.tcp)] for row in shown if row.tcp])}
    return {"xAxis": {"type": "log", "logBase": 2, "name": "bytes", "nameLocation": "middle",
                      "nameGap": 28},
            "yAxis": {"type": "log", "name": unit}, "legend": {"top": 0},
            "tooltip": {"trigger": "axis", "confine": True},
            "grid": {"left": 70, "right": 28, "top": 50, "bottom": 50},
            "series": [{"type": "line", "name": name, "color": colour, "data": points}
                       for name, (colour, points) in lines.items() if points]}
