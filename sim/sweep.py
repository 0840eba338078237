"""Command line: ``python -m sim.sweep sweep.yaml -o results.parquet`` simulates many points.

The sweep file names a topology file and the values of its keys. Each point's answer is kept as soon
as it is there, under a hash of all that it depends on, so the same command after an interruption
goes on where it stopped, and a changed sweep runs only its new points. Points run on all cores, or
with ``--dask`` on a cluster. docs/use/sweeps.md is the manual.
"""

from __future__ import annotations

import shlex
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.command import plain_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.schema.source import Source
    from sim.sweeps.design import Point
    from sim.sweeps.outcome_store import Store
    from sim.sweeps.result_table import SweepTable
    from sim.sweeps.study import Outcome, Study
    from sim.sweeps.sweep_file import SweepFile

PATH = click.Path(path_type=Path)
CACHE = ".harp-sweep"


@plain_command
@click.argument("sweep", type=PATH)
@click.option("-o", "--output", metavar="FILE", required=True,
              help="Write the result here, as .parquet or .csv.")
@click.option("--plot", metavar="FILE", help="Draw the first two objectives and the Pareto front.")
@click.option("--html", "page", metavar="FILE",
              help="Write table and Pareto front as one page for a browser.")
@click.option("--cache", metavar="DIR", type=PATH,
              help=f"Keep each point's answer here.  [{CACHE}, beside the result]")
@click.option("--workers", type=click.IntRange(1, 1024), metavar="N",
              help="Processes.  [one for each core]")
@click.option("--dask", metavar="ADDRESS", help="Run on the workers of this Dask scheduler, e.g. "
                                                "tcp://10.0.0.1:8786.")
@click.option("--quiet", is_flag=True, help="No table and no progress.")
def main(sweep: Path, *, output: str, plot: str | None, page: str | None, cache: Path | None,
         workers: int | None, dask: str | None, quiet: bool) -> None:
    """Simulate all points of a SWEEP file."""
    from harp.cli.io import write_bytes, write_text
    from sim.sweeps.outcome_store import Store
    from sim.sweeps.result_table import csv_text, make_table, parquet_bytes
    from sim.sweeps.sweep_file import read_sweep

    if workers and dask is not None:
        raise click.UsageError("--workers is for this machine; a Dask cluster has its own")
    given, source = read_sweep(sweep)
    study, points = _prepare(given, source, sweep)
    _check_outputs(sweep, output, plot, page, given)
    if dask is not None:
        from sim.sweeps.dask_cluster import check_dask

        check_dask(dask)
    store = Store(cache or Path(output).absolute().parent / CACHE)
    outcomes = _run(study, points, store, sweep.stem, workers, dask, quiet=quiet)
    table = make_table(points, outcomes, given.objectives)
    if plot:
        from sim.sweeps.pareto_plot import pareto_plot

        write_bytes(plot, pareto_plot(table, plot, sweep.stem))
    if page:
        from sim.sweeps.sweep_page import sweep_html

        given_options = {"-o": output, "--plot": plot, "--html": page, "--cache": cache,
                         "--workers": workers, "--dask": dask}
        command = shlex.join(["python", "-m", "sim.sweep", str(sweep), *(
            word for option, value in given_options.items() if value is not None
            for word in (option, str(value)))])
        write_text(page, sweep_html(table, sweep.stem, command))
    if Path(output).suffix.lower() == ".csv":
        write_text(output, csv_text(table))
    else:
        write_bytes(output, parquet_bytes(table, _origin(study, source)))
    if not quiet:
        _print(table, len(points))


def _prepare(sweep: SweepFile, source: Source, path: Path) -> tuple[Study, list[Point]]:
    """Read the topology and check each value of the sweep; raises TopologyError."""
    from sim.schema.input_errors import Problem
    from sim.schema.source import MAX_BYTES, read_input
    from sim.sweeps.design import points, samples
    from sim.sweeps.result_table import check_columns
    from sim.sweeps.study import Study

    file = path.parent / sweep.topology
    study = Study(str(file), read_input(file, most_bytes=MAX_BYTES, allowed="a YAML file"),
                  tuple(sweep.scenarios or ()), sweep.fidelity, sweep.draws)
    try:
        found = points(sweep)
        check_columns(found, sweep.objectives)
        for point, place in samples(sweep):
            _check_point(study, point, place, sweep.fixed)
        _check_scenarios(sweep, study)
    except Problem as problem:
        raise source.first([problem]) from None
    return study, found


def _check_point(study: Study, point: Point, place: tuple[str | int, ...],
                 fixed: dict[str, Any]) -> None:
    """Raise Problem, at the value's place in the sweep file, where the topology cannot have it."""
    from sim.schema.input_errors import Problem, TopologyError

    try:
        study.check_form(point.changes)
    except TopologyError as error:
        at_fault = dict(zip((f"--set {change}" for change in point.changes),
                            (key for key, _ in point.settings), strict=True)).get(error.file)
        if at_fault is None:
            raise
        names = [] if error.nearest is None else [error.nearest]
        raise Problem(f"{error.key}: {error.says}" if error.key else error.says,
                      path=(*(("set",) if at_fault in fixed else place), at_fault),
                      allowed=error.allowed, found=error.nearest, names=names) from None


def _check_scenarios(sweep: SweepFile, study: Study) -> None:
    from sim.schema.input_errors import unknown

    names = [scenario.name for scenario in study.load(()).scenarios]
    for number, name in enumerate(sweep.scenarios or ()):
        if name not in names:
            raise unknown("scenario", name, names, ("scenarios", number))


def _check_outputs(sweep: Path, output: str, plot: str | None, page: str | None,
                   given: SweepFile) -> None:
    from harp.cli.io import check_target, check_targets
    from sim.report.plot import SUFFIXES as PICTURES
    from sim.schema.input_errors import Problem
    from sim.sweeps.result_table import SUFFIXES, check_parquet

    check_targets({"-o": output, "--plot": plot, "--html": page}, inputs=[str(sweep)])
    check_target(output, SUFFIXES, stdout=False)
    if page:
        check_target(page, (".html", ".htm"), stdout=False)
    if output.lower().endswith(".parquet"):
        try:
            check_parquet()
        except Problem as problem:
            raise click.UsageError(f"{problem}; allowed: {problem.allowed}") from problem
    if plot:
        check_target(plot, PICTURES, stdout=False)
        if len(given.objectives) < 2:
            raise click.UsageError("--plot needs two objectives in the sweep file, e.g. "
                                   "objectives: {images_per_s: max, fabric.spines: min}")


def _run(study: Study, points: Sequence[Point], store: Store, label: str, workers: int | None,
         dask: str | None, *, quiet: bool) -> dict[tuple[str, ...], Outcome]:
    """Outcomes by changes: those that are stored, and new ones, which are stored at once."""
    from sim.answer.progress import progress
    from sim.sweeps.dask_cluster import SchedulerGoneError
    from sim.sweeps.executor import each_outcome

    keys = {point.changes: study.key(point.changes) for point in points}
    done = {changes: found for changes, key in keys.items() if (found := store.get(key))}
    todo = [(key, changes) for changes, key in keys.items() if changes not in done]
    if not quiet and done:
        click.echo(f"{len(done):,} of {len(points):,} points are stored in {store.folder}",
                   err=True)
    try:
        with (progress(len(todo), label, quiet=quiet, lasting=True) as advance,
              closing(each_outcome(study, todo, workers, dask)) as running):
            for outcome in running:
                store.put(outcome)
                done[outcome.changes] = outcome
                advance()
    except (BrokenProcessPool, SchedulerGoneError) as error:
        why = str(error.message if isinstance(error, SchedulerGoneError) else (
            "a worker was killed (perhaps memory ran out: try fewer --workers)"))
        raise click.ClickException(f"{why}; {len(done):,} of {len(points):,} points are kept, and "
                                   "the same command goes on") from None
    return done


def _origin(study: Study, source: Source) -> dict[str, str]:
    """Inputs of a result, for the metadata of its file."""
    import hashlib
    from importlib import metadata

    return {"harp.version": metadata.version("harp-stack"), "harp.topology": study.file,
            "harp.topology.sha256": hashlib.sha256(study.data).hexdigest(),
            "harp.sweep.sha256": source.sha256}


def _print(table: SweepTable, points: int) -> None:
    from sim.report.screen import console_for
    from sim.sweeps.summary import print_summary

    print_summary(table, points, console=console_for())


if __name__ == "__main__":
    main()
