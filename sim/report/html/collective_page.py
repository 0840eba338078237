"""The answer of ``sim.run --collective`` as one HTML file: busbw and time of every size, charted.

It has the form of an answer's page (`sim.report.html.page`) and what the terminal shows: busbw with
its interval, times, and where they were asked for, what times and intervals are due to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harp.html_page.tables_page import Given, Part, tables_html
from sim.report.collective_table import (
    MOST_LIMITS,
    NOT_MODELLED,
    best_times,
    cause_end,
    causes_of_best,
    is_best,
    time_us,
)
from sim.report.html.page import PARAMETER_HEAD, Made, parameter_rows
from sim.report.numbers import percent
from sim.report.panels import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sim.records.results import CollectiveReport, CollectiveRow

COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, GREY)
DIGITS = 4
GRID = {"left": 64, "right": 28, "top": 40, "bottom": 56}
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def collective_html(report: CollectiveReport, stack: str, description: str, made: Made) -> str:
    """Text of the page; ``stack`` names the host stack, ``description`` is the topology file's."""
    found = _Found(report)
    notes = [description, *([NOT_MODELLED] if any(row.choice for row in report.rows) else []),
             *report.notes]
    given = Given("Topology", made.topology, (
        ("Seed", str(report.seed)), ("SHA-256 of the topology file", report.origin.sha256)))
    return tables_html(f"{report.topology}: {report.collective}, {report.ranks} ranks over {stack}",
                       " ".join(filter(None, notes)), list(found.parts()), made.command, given)


class _Found:
    """Rows by size and algorithm."""

    def __init__(self, report: CollectiveReport) -> None:
        self.report = report
        self.rows = {(row.size_bytes, row.algorithm): row for row in report.rows}
        self.sizes = sorted({row.size_bytes for row in report.rows})
        self.names = list(dict.fromkeys(row.algorithm for row in report.rows))
        self.counts = {row.size_bytes: row.count for row in report.rows}
        self.with_interval = any(row.interval for row in report.rows)
        self.best = best_times(report)

    def parts(self) -> Iterator[Part]:
        """Sections of the page."""
        band = "; bands are P10 to P90" if self.with_interval else ""
        yield Part("Bus bandwidth (GB/s)", *self._table("busbw"), chart=self._busbw_chart(),
                   says=f"Bus bandwidth of each algorithm by size{band}.")
        yield Part("Time (us)", *self._table("time"), chart=self._time_chart(),
                   says="Time of each algorithm by size, on logarithmic axes; * marks the fastest.")
        yield from self._causes()
        yield from self._limits()
        if self.report.origin.parameters:
            head, *rows = ([name, confidence, source, *values] for name, *values, confidence, source
                           in (PARAMETER_HEAD, *parameter_rows(self.report.origin.parameters)))
            yield Part("Parameters, their intervals and sources", head, rows, texts=3)

    def _table(self, what: str) -> tuple[list[str], list[list[str]]]:
        """Head and rows: a line for each size, and for each algorithm its columns."""
        head = ["size (B)", f"count ({self.report.datatype})"]
        columns = []
        for name in self.names:
            rows = [self.rows.get((size, name)) for size in self.sizes]
            if any(row and row.choice for row in rows):
                head.append(f"{name} chooses")
                columns.append([row.choice if row else "" for row in rows])
            head.append(name)
            columns.append([self._cell(row, what) for row in rows])
            if self.with_interval:
                head += [f"{name} {quantile}" for quantile in ("P10", "P50", "P90")]
                columns += map(list, zip(*(_quantiles(row, what) for row in rows), strict=True))
        return head, [[str(size), str(self.counts[size]), *cells] for size, *cells in zip(
            self.sizes, *columns, strict=True)]

    def _cell(self, row: CollectiveRow | None, what: str) -> str:
        if row is None:
            return ""
        shown = time_us(row.time_s * 1e6) if what == "time" else f"{row.busbw / 1e9:.2f}"
        return f"*{shown}" if is_best(row, self.best) else shown

    def _line(self, name: str) -> list[CollectiveRow | None]:
        return [self.rows.get((size, name)) for size in self.sizes]

    def _busbw_chart(self) -> dict[str, Any]:
        series: list[dict[str, Any]] = []
        for name, colour in self._coloured():
            rows = self._line(name)
            series.append(_curve(name, colour, [None if row is None else row.busbw / 1e9
                                                for row in rows]))
            if self.with_interval:
                series += _band(name, colour, [None if row is None else row.busbw_interval
                                               for row in rows])
        return self._chart(series, {"type": "value", "name": "busbw (GB/s)"})

    def _time_chart(self) -> dict[str, Any]:
        series = [_curve(name, colour, [None if row is None else row.time_s * 1e6
                                        for row in self._line(name)])
                  for name, colour in self._coloured()]
        return self._chart(series, {"type": "log", "name": "time (us)"})

    def _coloured(self) -> Iterator[tuple[str, str]]:
        for number, name in enumerate(self.names):
            yield name, COLOURS[number % len(COLOURS)]

    def _chart(self, series: Sequence[dict[str, Any]], up: dict[str, Any]) -> dict[str, Any]:
        across = {"type": "category", "name": "size", "nameLocation": "middle", "nameGap": 32,
                  "boundaryGap": False, "data": [_size(size) for size in self.sizes],
                  "axisLabel": {"hideOverlap": True}}
        return {"xAxis": across, "yAxis": up, "series": series, "grid": GRID,
                "legend": {"top": 0, "right": 0, "type": "scroll", "data": self.names,
                           "left": 120},
                "tooltip": {"trigger": "axis", "confine": True, "order": "valueAsc"}}

    def _causes(self) -> Iterator[Part]:
        """Causes of the intervals; the chart is of the largest size."""
        lines = causes_of_best(self.report)
        if not lines:
            return
        last = lines[-1][0]
        causes = [cause for row, cause in lines if row is last]
        sides = [{"type": "bar", "stack": "both", "name": name, "color": colour, "barMaxWidth": 28,
                  "data": [_digits(100 * (getattr(cause, end) / last.busbw - 1))
                           for cause in causes]}
                 for name, colour, end in (("parameter at its P10", SKY, "at_low"),
                                           ("at its P90", VERMILION, "at_high"))]
        chart = {"xAxis": {"type": "value", "name": "% of busbw", "nameLocation": "middle",
                           "nameGap": 28},
                 "yAxis": {"type": "category", "inverse": True,
                           "data": [cause.parameter for cause in causes],
                           "axisLabel": {"width": 130, "overflow": "breakAll", "fontSize": 11,
                                         "lineHeight": 12}},
                 "series": sides, "grid": {**GRID, "left": 150}, "tooltip": {"confine": True},
                 "legend": {"top": 0, "type": "scroll"}}
        yield Part(
            "What decides the answer",
            ("size (B)", "algorithm", "due to", "from", "to", "busbw from", "busbw to", "width"),
            [[str(row.size_bytes), row.algorithm, cause.parameter, cause_end(cause, cause.low),
              cause_end(cause, cause.high), f"{cause.at_low / 1e9:.2f}",
              f"{cause.at_high / 1e9:.2f}", percent(cause.width / row.busbw)]
             for row, cause in lines], chart,
            f"Each parameter alone goes to its P10 and its P90; {last.algorithm} at "
            f"{_size(last.size_bytes)} changes by this much.", texts=3)

    def _limits(self) -> Iterator[Part]:
        """Causes of the times."""
        rows = [row for row in self.report.rows if row.limits]
        if rows:
            yield Part("Where the time goes", ("size (B)", "algorithm", "due to", "time (us)"),
                       [[str(row.size_bytes), row.algorithm, ", ".join(
                           f"{limit.name} {percent(limit.seconds / row.time_s)}"
                           for limit in row.limits[:MOST_LIMITS]), time_us(row.time_s * 1e6)]
                        for row in rows], texts=3)


def _quantiles(row: CollectiveRow | None, what: str) -> list[str]:
    """P10, P50 and P90 as a table shows them."""
    if row is None or row.interval is None or row.busbw_interval is None:
        return ["", "", ""]
    if what == "time":
        interval = row.interval
        return [time_us(time_s * 1e6)
                for time_s in (interval.low_s, interval.median_s, interval.high_s)]
    return [f"{busbw / 1e9:.2f}" for busbw in row.busbw_interval]


def _curve(name: str, colour: str, values: Sequence[float | None]) -> dict[str, Any]:
    return {"type": "line", "name": name, "color": colour, "symbolSize": 5,
            "data": [None if value is None else _digits(value) for value in values]}


def _band(name: str, colour: str, ends: Sequence[tuple[float, float, float] | None]) -> list[
        dict[str, Any]]:
    """An area from P10 to P90 in GB/s, drawn as a series on top of one that is not seen.

    Both have the curve's name, so that its entry in the legend hides all three.
    """
    unseen = {"type": "line", "name": name, "color": colour, "symbol": "none", "silent": True,
              "stack": f"{name}, P10 to P90", "lineStyle": {"opacity": 0},
              "tooltip": {"show": False}}
    return [{**unseen, "data": [None if end is None else _digits(end[0] / 1e9) for end in ends]},
            {**unseen, "areaStyle": {"opacity": 0.15},
             "data": [None if end is None else _digits((end[2] - end[0]) / 1e9)
                      for end in ends]}]


def _digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _size(nbytes: int) -> str:
    """Bytes in the largest binary unit that is not above them."""
    power = min(max(nbytes.bit_length() - 1, 0) // 10, len(UNITS) - 1)
    return f"{nbytes / 1024**power:.4g} {UNITS[power]}"
