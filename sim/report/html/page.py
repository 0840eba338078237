"""The answer as one HTML file: tables, charts, the topology as given, and how it was made.

The file loads nothing: style, data, script and Apache ECharts (``harp/html_page``) are inside, and
its content security policy forbids all else. Tables stand in the text, so the page can be read
without the script, by a screen reader and on paper. The same report gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from harp.html_page.html_elements import (
    file_text,
    json_text,
    licences,
    sentences,
    table,
    text,
)
from harp.html_page.tables_page import MOST_GIVEN, cut_note
from sim.report.answer_table import columns_of, label, notes, outside
from sim.report.cost_table import cost_columns
from sim.report.export import breakdown_ms
from sim.report.html.page_data import page_data
from sim.report.quantities import quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.cluster.cluster import Cluster
    from sim.records.results import Report, ScenarioResult, UsedParameter
    from sim.report.screen import Column

FOLDER = Path(__file__).parent
MOST_BYTES = 2_000_000
"""Largest file: one that mail takes and a phone opens."""
MOST_TABLE_ROWS = 1500


@dataclass(frozen=True)
class Made:
    """Origin of a report."""

    command: str
    """The command that makes it again."""
    topology: str
    """Text of the topology file."""


def report_html(report: Report, cluster: Cluster, made: Made) -> str:
    """Text of the page."""
    data = page_data(report, cluster.fabric)
    page = _page(report, cluster, made, data)
    while len(page.encode()) > MOST_BYTES and data["details"]:
        data["details"] = data["details"][:len(data["details"]) // 2]
        page = _page(report, cluster, made, data)
    return page


def _page(report: Report, cluster: Cluster, made: Made, data: dict[str, Any]) -> str:
    rows = report.scenarios
    shown = rows[:MOST_TABLE_ROWS]
    cut = [] if len(shown) == len(rows) else [f"{len(shown)} of {len(rows)} rows are shown."]
    columns = columns_of(shown, plain=False) if shown else []
    description, unit = cluster.topology.description, data["unit"].capitalize()
    return Template(file_text("page.html", FOLDER)).substitute(
        title=text(report.topology),
        description=f"<p>{text(description)}</p>" if description else "",
        style=file_text("page.css"), script=file_text("page.js", FOLDER),
        library=file_text("echarts/echarts.min.js"), licences=licences(),
        data=json_text(data), unit=unit,
        table=_columns_table(
            columns, caption=f"{unit} and what limits them; ✗ marks a row outside its tolerance",
            marked=[outside(row) for row in shown]),
        costs=_costs(report), parts=_parts(shown),
        parameters=_parameters(report.origin.parameters),
        notes=sentences("Notes", [*cut, *notes(report, [column.header for column in columns])]),
        warnings=sentences("Keys without effect", [warned.text for warned in report.warnings]),
        fabric_none=text("The fabric is too large to be drawn: "
                          f"{len(cluster.fabric.switches):,} switches."),
        fabric_caption=text(_caption(data)),
        topology=text(made.topology[:MOST_GIVEN]), topology_note=cut_note(made.topology),
        command=text(made.command), version=text(metadata.version("harp-stack")),
        seed=report.seed, sha256=text(report.origin.sha256))


def _caption(data: dict[str, Any]) -> str:
    drawn = data["fabric"]["nodes"] if data["fabric"] else []
    hosts = "" if any(not node[3] for node in drawn) else " Its hosts are too many to be drawn."
    return ("Squares are switches, circles NICs. A cable is grey where idle, light blue up to 50 % "
            "of its rate, blue up to 90 %, orange above, dashed where it is down; the busier "
            f"direction counts.{hosts} Drag and scroll to move and zoom.")


def _costs(report: Report) -> str:
    """Costs of each row, where the file has prices."""
    columns = cost_columns(report)
    if not columns:
        return ""
    return ('<h3>Cost</h3><div class="wide" role="region" aria-label="Table of costs" tabindex="0">'
            f"{_columns_table(columns, caption='What the hosts of each row cost')}</div>")


def _columns_table(columns: Sequence[Column], *, caption: str,
                   marked: Sequence[bool] = ()) -> str:
    """An HTML table of the columns that are not empty, as they stand on a terminal."""
    kept = [column for column in columns if any(column.cells)]
    body = ([cell.plain for cell in cells]
            for cells in zip(*(column.cells[:MOST_TABLE_ROWS] for column in kept), strict=True))
    return table([column.header.replace("-\n", "").replace("\n", " ") for column in kept], body,
                  caption=caption, left=[column.align == "left" for column in kept], marked=marked)


def _parts(rows: Sequence[ScenarioResult]) -> str:
    names = [name.replace("_", " ") for name in breakdown_ms(rows[0].breakdown)] if rows else []
    body = ([label(row), *("" if part is None else f"{part:.4g}"
                           for part in breakdown_ms(row.breakdown).values())] for row in rows)
    return table(["row", *(f"{name} ms" for name in names)], body,
                  caption="Parts of a step in milliseconds", left=[True] + [False] * len(names))


def _parameters(parameters: Sequence[UsedParameter]) -> str:
    return table(PARAMETER_HEAD, parameter_rows(parameters),
                 caption="Parameters, their intervals and sources",
                 left=[True, False, False, False, True, True])


PARAMETER_HEAD = ("parameter", "value", "from", "to", "confidence", "source")


def parameter_rows(parameters: Sequence[UsedParameter]) -> list[list[str]]:
    """Cells of each parameter's row."""
    return [[used.name, *(quantity(used.name, value) for value in (used.value, used.low,
                                                                   used.high)),
             used.confidence, used.source] for used in parameters]
