"""Command line: ``python -m sim.validate published`` compares answers with published measurements.

``python -m sim.validate fidelities`` compares fidelity flow with fidelity packet
(`sim.validation.fidelities`; docs/results/fidelities.md), and ``python -m sim.validate
corrections`` derives the intervals of flow's corrections again, from other cases. ``python -m
sim.validate packet`` compares fidelity packet with closed forms and published results
(docs/results/packet-published.md). ``python -m sim.validate lab`` (root, some minutes) compares
packet with the laboratory (docs/results/lab-validation.md).

``published`` simulates every case of ``sim/validation/cases`` and every row of ``topologies/`` with
the shipped parameters, and again with draws of the uncertain ones. Rows to which kernel-tcp is
fitted are predicted by the fit to all other sources, and intervals have the margin of all other
sources (`sim.validation.coverage`); with ``--case`` they have the shipped one. The status is 1 if a
row is off by more than a quarter and its case gives no reason, or if a shipped margin is stale.
docs/results/validation.md has the results of this version.

``python -m sim.validate FILE...`` scores files of your own: topology files by the figures under
their ``expect``, or cases. The status is 1 if a figure is missed by more than its ``within``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from sim.command import plain_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

RowT = TypeVar("RowT")


@plain_command
@click.argument("what", nargs=-1, required=True,
                metavar="published|fidelities|corrections|packet|lab|FILE...")
@click.option("--case", "only", multiple=True, metavar="NAME",
              help="Run only this case, the name of its file without .yaml (may be repeated).")
@click.option("--draws", type=click.IntRange(0, 1000), default=24, show_default=True,
              help="Draws of the uncertain parameters, for P10 and P90.")
@click.option("--refit/--no-refit", default=None,
              help="Predict each fitted row by a fit without its source.  [yes, unless --case]")
@click.option("--page", metavar="FILE.md", help="Write the results page, and its plot beside it.")
@click.option("--workers", type=click.IntRange(1, 1024), metavar="N",
              help="For published and FILE: processes.  [one for each core]")
@click.option("--dask", metavar="ADDRESS", help="For published and FILE: run on the workers of "
              "this Dask scheduler, e.g. tcp://10.0.0.1:8786.")
def main(what: tuple[str, ...], *, only: tuple[str, ...], draws: int, refit: bool | None,
         page: str | None, workers: int | None, dask: str | None) -> int:
    """Compare the simulator with published measurements or your own, or its fidelities."""
    from harp.cli.io import check_target

    if page is not None:
        check_target(page, (".md",))
    means = _means(what, workers, dask)
    if what == ("published",):
        return _published(only, draws, refit, page, means)
    if only or refit is not None:
        raise click.UsageError("--case and --refit work only with published")
    if what == ("corrections",):
        return _derive_corrections()
    compare = {"fidelities": _compare_fidelities, "packet": _compare_packets,
               "lab": _compare_laboratory}.get(" ".join(what))
    if compare is not None:
        return compare(page)
    if page is not None:
        raise click.UsageError("--page works only with published, fidelities, packet and lab")
    return _score_files(_files(what), draws, means)


Means = tuple[int | None, str | None]
"""Processes of this machine, or the address of a Dask scheduler."""


def _means(what: tuple[str, ...], workers: int | None, dask: str | None) -> Means:
    """Check how cases shall run."""
    if workers and dask is not None:
        raise click.UsageError("--workers is for this machine; a Dask cluster has its own")
    if (workers or dask) and len(what) == 1 and what[0] in WORDS[1:]:
        raise click.UsageError("--workers and --dask work only with published and files")
    if dask is not None:
        from sim.sweeps.dask_cluster import check_dask

        check_dask(dask)
    return workers, dask


def _published(only: tuple[str, ...], draws: int, refit: bool | None, page: str | None,
               means: Means) -> int:
    """Check the options that belong to published figures, and predict these."""
    refit = not only if refit is None else refit
    if page is not None and not refit:
        raise click.UsageError("--page needs --refit, and no --case")
    return _compare_published(only, draws, page, means, refit=refit)


def _compare_published(only: tuple[str, ...], draws: int, page: str | None, means: Means, *,
                       refit: bool) -> int:
    """Predict published figures; status 1 where one is off without a reason or a margin stale."""
    from sim.calibration.joint_fit import left_out
    from sim.report.screen import console_for
    from sim.validation.coverage import against_others, as_shipped, stale
    from sim.validation.predictions import missed, predict_files, print_rows, write_page

    rows = predict_files(_chosen(only), draws, *means)
    if refit:
        rows = left_out(rows)
    old = [] if only or not draws else stale(rows)
    if draws:
        rows = as_shipped(rows) if only else against_others(rows)
    print_rows(rows, console_for(sys.stdout), covered=draws > 0, refit=refit)
    if page is not None:
        write_page(rows, Path(page))
    unexplained = [row for row in rows if missed(row) and not row.note]
    for row in unexplained:
        click.echo(f"error: {row.name} is off by {row.error:+.0%}, and {row.case}.yaml gives no "
                   "reason (note:)", err=True)
    for sentence in old:
        click.echo(f"error: {sentence}", err=True)
    return int(bool(unexplained or old))


WORDS = ("published", "fidelities", "corrections", "packet", "lab")


def _files(names: tuple[str, ...]) -> list[Path]:
    """The user's own files; raises a usage error for a word that is neither one nor a file."""
    from harp.nearest import did_you_mean

    for name in names:
        if not os.path.isfile(name):  # noqa: PTH113 - never raises
            what = (f"{name} stands alone" if name in WORDS else
                    f"there is no file {name}{did_you_mean(name, WORDS, 0.6)}")
            raise click.UsageError(f"{what}; give {', '.join(WORDS)}, or files with figures")
    return [Path(name) for name in names]


def _score_files(paths: list[Path], draws: int, means: Means) -> int:
    """Predict the figures of a user's files; status 1 if one is missed."""
    from sim.report.screen import console_for
    from sim.validation.case import load_published
    from sim.validation.coverage import as_shipped
    from sim.validation.predictions import predict_files, print_rows

    for path in paths:
        if not load_published(path):
            raise click.UsageError(f"{path} has no figures to score: give some under expect, of "
                                   "kind published or measured")
    rows = predict_files(paths, draws, *means)
    if draws:
        rows = as_shipped(rows)
    print_rows(rows, console_for(sys.stdout), covered=draws > 0, refit=False)
    off = [row for row in rows if abs(row.error) > row.figure.within and not row.note]
    for row in off:
        click.echo(f"error: {row.name} is off by {row.error:+.0%}; allowed: "
                   f"{row.figure.within:.0%}", err=True)
    return int(bool(off))


def _compare_fidelities(page: str | None) -> int:
    """Run every case at both fidelities."""
    from sim.validation.fidelities import (
        CASES,
        compare,
        print_compared,
        unexplained,
        write_compared,
    )

    rows = [compare(case) for case in CASES]
    off = [(row.case.name, row.error) for row in unexplained(rows)]
    return _show_rows(rows, print_compared, write_compared, off, page)


def _derive_corrections() -> int:
    """Derive the intervals of flow's corrections; status 1 if a shipped one differs."""
    from sim.report.screen import console_for
    from sim.validation.correction_runs import derive, print_derived

    rows = derive()
    print_derived(rows, console_for(sys.stdout))
    for row in rows:
        if row.stale:
            click.echo(f"error: {row.correction.name} of sim/network/corrections.py is stale",
                       err=True)
    return int(any(row.stale for row in rows))


def _compare_packets(page: str | None) -> int:
    """Run the cases with a closed form, and published cases of TCP."""
    from sim.network.packet.reference_cases import path_rows, published_rows
    from sim.validation.closed_forms import collective_rows
    from sim.validation.packet_page import print_tables, unexplained, write_tables

    tables = [[*path_rows(), *collective_rows()], published_rows()]
    off = [(f"{row.case}, {row.figure}", row.error)
           for rows in tables for row in unexplained(rows)]
    return _show_rows(tables, print_tables, write_tables, off, page)


def _compare_laboratory(page: str | None) -> int:
    """Run every scaled case at packet and in the lab."""
    from sim.validation.laboratory import (
        LAB_CASES,
        compare_with_lab,
        print_compared,
        unexplained,
        write_compared,
    )

    rows = []
    for number, case in enumerate(LAB_CASES):
        click.echo(f"{number + 1} of {len(LAB_CASES)}: {case.name}", err=True)
        rows.append(compare_with_lab(case))
    off = [(row.case.name, row.error) for row in unexplained(rows)]
    return _show_rows(rows, print_compared, write_compared, off, page)


def _show_rows(rows: list[RowT], print_rows: Callable[[list[RowT], Console], None],
               write_rows: Callable[[list[RowT], Path], None], off: list[tuple[str, float]],
               page: str | None) -> int:
    """Print rows and write their page; status 1 if one is off without a reason."""
    from sim.report.screen import console_for

    print_rows(rows, console_for(sys.stdout))
    if page is not None:
        write_rows(rows, Path(page))
    for name, error in off:
        click.echo(f"error: {name} is off by {error:+.0%} and gives no reason", err=True)
    return int(bool(off))


def _chosen(only: tuple[str, ...]) -> list[Path]:
    """Files of the cases; raises a usage error for an unknown name."""
    from sim.schema.input_errors import TopologyError, unknown
    from sim.validation.case import published_files

    files = {path.stem: path for path in published_files()}
    for name in only:
        if name not in files:
            raise click.UsageError(str(TopologyError("--case", unknown("case", name, list(files)))))
    return [files[name] for name in only or files]


if __name__ == "__main__":
    main()
