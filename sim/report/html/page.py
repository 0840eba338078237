"""The answer as one HTML file: tables, charts, the topology as given, and how it was made.

The file loads nothing: style, data, script and Apache ECharts (``echarts/``) are inside, and its
content security policy forbids all else. Tables stand in the text, so the page can be read without
the script, by a screen reader and on paper. The same report gives the same bytes.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from sim.report.answer_table import columns_of, label, notes, outside
from sim.report.cost_table import cost_columns
from sim.report.export import breakdown_ms
from sim.report.html.page_data import page_data
from sim.report.quantities import quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sim.cluster.cluster import Cluster
    from sim.records.results import Report, ScenarioResult, UsedParameter
    from sim.report.screen import Column

FOLDER = Path(__file__).parent
MOST_BYTES = 2_000_000
"""Largest file: one that mail takes and a phone opens."""
MOST_TOPOLOGY = 200_000
"""Characters of the topology file that are shown."""
MOST_TABLE_ROWS = 1500
LICENCES = ("NOTICE", "LICENSE", "LICENSE-zrender", "LICENSE-d3")


@dataclass(frozen=True)
class Made:
    """Where a report comes from."""

    command: str
    """The command that makes it again."""
    topology: str
    """Text of the topology file."""


def report_html(report: Report, cluster: Cluster, made: Made) -> str:
    """Text of the page."""
    data = page_data(report, cluster.fabric)
    text = _page(report, cluster, made, data)
    while len(text.encode()) > MOST_BYTES and data["details"]:
        data["details"] = data["details"][:len(data["details"]) // 2]
        text = _page(report, cluster, made, data)
    return text


def _page(report: Report, cluster: Cluster, made: Made, data: dict[str, Any]) -> str:
    rows = report.scenarios
    shown = rows[:MOST_TABLE_ROWS]
    cut = [] if len(shown) == len(rows) else [f"{len(shown)} of {len(rows)} rows are shown."]
    columns = columns_of(shown, plain=False) if shown else []
    description = cluster.topology.description
    return Template(_file("page.html")).substitute(
        title=_text(report.topology),
        description=f"<p>{_text(description)}</p>" if description else "",
        style=_file("page.css"), script=_file("page.js"), library=_file("echarts/echarts.min.js"),
        licences="\n\n".join(_file(f"echarts/{name}").replace("--", "- -") for name in LICENCES),
        data=_json(data),
        table=_columns_table(
            columns, caption="Images/s and what limits them; ✗ marks a row outside its tolerance",
            marked=[outside(row) for row in shown]),
        costs=_costs(report), parts=_parts(shown),
        parameters=_parameters(report.origin.parameters),
        notes=_list("Notes", [*cut, *notes(report, [column.header for column in columns])]),
        warnings=_list("Keys without effect", [warned.text for warned in report.warnings]),
        fabric_none=_text("The fabric is too large to be drawn: "
                          f"{len(cluster.fabric.switches):,} switches."),
        fabric_caption=_text(_caption(data)),
        topology=_text(made.topology[:MOST_TOPOLOGY]),
        topology_note="" if len(made.topology) <= MOST_TOPOLOGY else
        f"<p>The first {MOST_TOPOLOGY:,} of {len(made.topology):,} characters.</p>",
        command=_text(made.command), version=_text(metadata.version("harp-stack")),
        seed=report.seed, sha256=_text(report.origin.sha256))


def _caption(data: dict[str, Any]) -> str:
    drawn = data["fabric"]["nodes"] if data["fabric"] else []
    hosts = "" if any(not node[3] for node in drawn) else " Its hosts are too many to be drawn."
    return ("Squares are switches, circles NICs. A cable is grey where idle, light blue up to 50 % "
            "of its rate, blue up to 90 %, orange above, dashed where it is down; the busier "
            f"direction counts.{hosts} Drag and scroll to move and zoom.")


def _costs(report: Report) -> str:
    """What each row costs, where the file has prices."""
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
    return _table([column.header.replace("-\n", "").replace("\n", " ") for column in kept], body,
                  caption=caption, left=[column.align == "left" for column in kept], marked=marked)


def _parts(rows: Sequence[ScenarioResult]) -> str:
    names = [name.replace("_", " ") for name in breakdown_ms(rows[0].breakdown)] if rows else []
    body = ([label(row), *("" if part is None else f"{part:.4g}"
                           for part in breakdown_ms(row.breakdown).values())] for row in rows)
    return _table(["row", *(f"{name} ms" for name in names)], body,
                  caption="Parts of a step in milliseconds", left=[True] + [False] * len(names))


def _parameters(parameters: Sequence[UsedParameter]) -> str:
    def body(used: UsedParameter) -> list[str]:
        values = (quantity(used.name, value) for value in (used.value, used.low, used.high))
        return [used.name, *values, used.confidence, used.source]

    return _table(["parameter", "value", "from", "to", "confidence", "source"],
                  map(body, parameters), caption="Parameters, their intervals and sources",
                  left=[True, False, False, False, True, True])


def _table(head: Sequence[str], body: Iterable[Sequence[str]], *, caption: str,
           left: Sequence[bool], marked: Sequence[bool] = ()) -> str:
    """An HTML table whose first column names the rows."""
    sides = [' class="left"' if one else "" for one in left]
    lines = [f"<table><caption>{_text(caption)}</caption><thead><tr>",
             *(f'<th scope="col"{side}>{_text(name)}</th>'
               for name, side in zip(head, sides, strict=True)), "</tr></thead><tbody>"]
    for number, cells in enumerate(body):
        lines.append('<tr class="missed">' if any(marked[number:number + 1]) else "<tr>")
        for column, (cell, one) in enumerate(zip(cells, left, strict=True)):
            kind = ' class="left fold"' if one else ""
            lines.append(f'<td{kind}>{_text(cell)}</td>' if column else
                         f'<th scope="row"{kind}>{_text(cell)}</th>')
        lines.append("</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def _list(title: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{_text(sentence)}</li>" for sentence in sentences)
    return f'<h3>{title}</h3><ul class="note">{items}</ul>'


def _text(words: str) -> str:
    return html.escape(words)


def _json(data: dict[str, Any]) -> str:
    """JSON that no HTML parser takes for the end of its element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _file(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")
