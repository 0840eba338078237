"""Tables with charts as one HTML file, for what is no answer of training.

Collectives of `sim.run`, sweeps, benches, `harp perf` and `harp diagnose` write it. It has the form
of an answer's page (`sim.report.html.page`): one file that loads nothing. It holds its tables as
HTML, its style, and Apache ECharts. A chart is an option of ECharts', as plain data. The
same tables give the same bytes.
"""

from __future__ import annotations

from importlib import metadata
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple

from harp.html_page.html_elements import file_text, json_text, licences, table, text

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_ROWS = 2000
"""Rows of a table, so that the page stays below 2 MB."""
MOST_GIVEN = 200_000
"""Characters of a given file that are shown."""
HEIGHT_PX = 420


class Part(NamedTuple):
    """A section: a table, and above it a chart of the same figures, if there is one."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    chart: dict[str, Any] | None = None
    """Option of ECharts."""
    says: str = ""
    """The chart's message, for readers and for screen readers."""
    texts: int = 1
    """Number of columns, from the first one on, that hold text."""


class Given(NamedTuple):
    """The file that was asked about, as given."""

    title: str
    content: str
    facts: Sequence[tuple[str, str]] = ()
    """Names and values that stand beside the version."""


def tables_html(title: str, description: str, parts: Sequence[Part], command: str,
                given: Given | None = None) -> str:
    """Text of the page."""
    charts = {f"chart-{number}": part.chart for number, part in enumerate(parts) if part.chart}
    return Template(file_text("tables.html")).substitute(
        title=text(title), description=f"<p>{text(description)}</p>" if description else "",
        style=file_text("page.css"), script=file_text("tables.js"), licences=licences(),
        library=file_text("echarts/echarts.min.js"), data=json_text(charts),
        parts="\n".join(_section(number, part) for number, part in enumerate(parts)),
        given="" if given is None else _given(given), command=text(command),
        version=text(metadata.version("harp-stack")),
        facts="".join(f'<dt>{text(name)}</dt><dd class="hash">{text(value)}</dd>'
                      for name, value in (given.facts if given else ())))


def _given(given: Given) -> str:
    name = text(given.title)
    return (f'<section id="given" aria-labelledby="given-head"><h2 id="given-head">{name}</h2>\n'
            "<details data-print><summary>The file as given</summary>\n"
            f'<div class="wide" role="region" aria-label="{name} as given" tabindex="0"><pre><code>'
            f"{text(given.content[:MOST_GIVEN])}</code></pre></div>\n"
            f"{cut_note(given.content)}</details></section>")


def cut_note(content: str) -> str:
    """A paragraph on a file that is too long to be shown whole."""
    return "" if len(content) <= MOST_GIVEN else (
        f"<p>The first {MOST_GIVEN:,} of {len(content):,} characters.</p>")


def _section(number: int, part: Part) -> str:
    cut = "" if len(part.rows) <= MOST_ROWS else (
        f"<p>The first {MOST_ROWS:,} of {len(part.rows):,} rows.</p>")
    chart = "" if part.chart is None else (
        f'<figure class="scripted"><figcaption>{text(part.says)}</figcaption>'
        f'<div class="chart" id="chart-{number}" style="height: {HEIGHT_PX}px" role="img" '
        f'aria-label="{text(part.says)} The table below has the figures."></div></figure>')
    columns = len(part.head)
    body = table(part.head, part.rows[:MOST_ROWS], caption=part.title,
                 left=[column < part.texts for column in range(columns)])
    title = text(part.title)
    return (f'<section aria-labelledby="head-{number}"><h2 id="head-{number}">{title}</h2>\n{chart}'
            f'\n<div class="wide" role="region" aria-label="Table: {title}" tabindex="0">'
            f"\n{body}\n</div>{cut}</section>")
