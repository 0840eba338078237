"""A subject of ``python -m bench``: its rows, how they are measured, and how they are printed.

Every subject has the options ``--only``, ``--json``, ``--save`` and ``--show``, and its own ones.
The command ends with status 1 if a row misses its target, and with 2 if it cannot run.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from bench.row_store import Store, open_store, when_measured
from bench.rows import Mistake, Result, Row, goal, select
from bench.rows_page import bench_html
from harp.cli.io import check_target, write_text
from lab.namespace import LabError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_LINE = "{:<19} {:<43} {:>12} {:>13}  {:>7} {:<23} {:>5} {:>8}  {}"
HEADER = _LINE.format("row", "what", "value", "spread", "beside", "", "ratio", "target", "met")


class BenchError(RuntimeError):
    """A measurement could not be made: a program does not build, or a tool is missing."""


class PeerError(BenchError):
    """A peer does not run here; its row names it with this sentence."""


@dataclass(frozen=True)
class Subject:
    """A subject: its rows, their measurement and their table."""

    about: str
    """The manual: the module's docstring."""
    rows: Mapping[str, Row]
    measure: Callable[..., Iterable[Result]]
    """Called with the chosen rows and the subject's options; results are printed and kept as they
    come."""
    options: Sequence[click.Option] = ()
    header: str = HEADER
    line: Callable[[Result], str] = field(default_factory=lambda: line)
    footer: Callable[[Sequence[Result]], str] = field(default_factory=lambda: lambda _: "")
    """Text below the table."""
    records: Callable[[Result], Iterable[Result]] = field(
        default_factory=lambda: lambda result: [result])
    """Rows that ``--json`` prints of a result."""
    finish: Callable[..., None] | None = None
    """Called with the results and the options when they are printed."""
    known: Callable[[], Mapping[str, Row]] | None = None
    """The rows that can be measured on this machine, if not all can."""

    def command(self, name: str) -> click.Command:
        """Return the command."""
        common: list[click.Parameter] = [
            click.Option(["--only", "--rows", "only"], metavar="TEXT,TEXT",
                         help="Rows of these ids, or of ids that contain these texts."),
            click.Option(["--json", "as_json"], is_flag=True, help="Print rows as JSON."),
            click.Option(["--save", "kept"], metavar="FILE", callback=open_store,
                         help="Keep each row in this file, in place of that of the same id."),
            click.Option(["--show", "shown"], metavar="FILE", callback=open_store,
                         help="Measure nothing, and print the rows of this file."),
            click.Option(["--html", "page"], metavar="FILE",
                         help="Write the rows as one page for a browser.")]
        return click.Command(name, params=[*common, *self.options], callback=self._run,
                             help=self.about, context_settings={"max_content_width": 100})

    def _run(self, only: str | None, kept: Store | None, shown: Store | None, page: str | None,
             *, as_json: bool, **options: Any) -> None:
        if page is not None:
            check_target(page, (".html", ".htm"), stdout=False)
        if shown is not None:
            results = self._print_kept(shown, select(shown.rows, only), as_json=as_json)
            if not as_json and (when := when_measured(results)):
                click.echo(f"\n{when}")
            self._write_page(page, results)
            if self.finish:
                self.finish(results, **options)
            return
        known = self.known() if self.known else self.rows
        chosen = [known[name] for name in select(known, only)]
        try:
            results = self._print(save_each(self.measure(chosen, **options), kept), as_json=as_json)
        except (BenchError, LabError) as error:
            raise Mistake(str(error)) from None
        self._write_page(page, results)
        if self.finish:
            self.finish(results, **options)
        sys.exit(int(not all(record.get("ok", True) for result in results
                             for record in self.records(result))))

    def _write_page(self, page: str | None, results: Sequence[Result]) -> None:
        if page is not None:
            context = click.get_current_context()
            records = [record for result in results for record in self.records(result)]
            write_text(page, bench_html(context.info_name or "", self.about, records,
                                        shlex.join(["python", "-m", "bench", *sys.argv[1:]])))

    def _print_kept(self, store: Store, names: Iterable[str], *, as_json: bool) -> list[Result]:
        try:
            return self._print((store.rows[name] for name in names), as_json=as_json)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            lacks = f"lacks {error}" if isinstance(error, KeyError) else f"is of others: {error}"
            raise Mistake(f"--show {store.path}: a row of it {lacks}") from None

    def _print(self, results: Iterable[Result], *, as_json: bool) -> list[Result]:
        """Print results as they come, and return them."""
        if as_json:
            made = list(results)
            click.echo(json.dumps([record for result in made for record in self.records(result)],
                                  indent=2))
            return made
        made, header = [], self.header
        for result in results:
            made.append(result)
            if text := self.line(result):
                click.echo(f"{header}\n{text}" if header else text)
                header = ""
        if end := self.footer(made):
            click.echo(end)
        return made


def save_each(results: Iterable[Result], kept: Store | None) -> Iterator[Result]:
    """Give results as they come, and keep each before the next one is measured."""
    for result in results:
        if kept is not None:
            kept.save([result])
        yield result


def line(row: Result) -> str:
    """Return a line of the usual table, and a line below it for each further figure."""
    beside, named = row.get("reference") or row.get("floor"), row.get("reference_is") or row.get(
        "floor_is")
    limit = goal(row["target"], lower=row["lower_is_better"], within=row.get("within"))
    ratio = row.get("ratio")
    lines = [_LINE.format(
        row["id"], row["what"][:43], f"{_brief(row['value'])} {row['unit']}",
        f"{_brief(row['least'])}…{_brief(row['most'])}" if "least" in row else "",
        _brief(beside) if beside else "", (named or "")[:23], f"{ratio:.2f}" if ratio else "",
        limit, ("yes" if row["ok"] else "NO") if limit else "")]
    for name, why in row.get("errors", {}).items():
        lines.append(f"  {name} does not run: {why}")
    for name, most in row.get("limits", {}).items():
        value = row["further"][name]
        lines.append(_LINE.format("", f"  {name.replace('_', ' ')}",
                                  "" if value is None else _brief(value), *[""] * 4, f"≤ {most:g}",
                                  ""))
    return "\n".join(map(str.rstrip, lines))


def _brief(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def each(rows: Sequence[Row], **options: Any) -> Iterator[Result]:
    """Measure rows one by one, each by its function."""
    for row in rows:
        yield row.function(**options)
