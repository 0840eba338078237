"""Command line: ``python -m sim.run topology.yaml`` answers what the file's scenarios ask.

Prints a table with the published or measured figures beside the simulated ones. ``--help`` lists
the options. A wrong file or option ends with status 2, one sentence and nothing written;
``--strict`` ends with status 1 where an answer lies outside what is expected.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sim.cluster import Cluster
    from sim.results import CollectiveReport, Report, ScenarioResult
    from sim.schema.model import Topology
    from sim.schema.scenario import Scenario

COLLECTIVES = ("allreduce", "reduce-scatter", "allgather", "broadcast", "alltoall")


@click.command(context_settings={"max_content_width": 100})
@click.argument("topology", type=click.Path(path_type=Path))
@click.option("--scenario", "only", multiple=True, help="Run only this scenario (may be repeated).")
@click.option("--explain", is_flag=True, help="Split each step into where its time goes.")
@click.option("--json", "json_target", metavar="FILE|-", help="Write the answer as JSON.")
@click.option("--csv", "csv_target", metavar="FILE|-", help="Write the answer as CSV.")
@click.option("--plot", metavar="FILE", help="Draw timeline, link utilisation and scaling.")
@click.option("--trace", metavar="FILE", help="Write a trace for ui.perfetto.dev.")
@click.option("--collective", type=click.Choice(COLLECTIVES),
              help="Time one collective by every algorithm instead of training.")
@click.option("--sizes", default="8:4GiB:2", show_default=True, metavar="FROM:TO:FACTOR",
              help="Sizes of --collective.")
@click.option("--stack", help="Host stack of --collective; the first scenario's by default.")
@click.option("--strict", is_flag=True, help="Fail where an answer misses its expectation.")
@click.option("--quiet", is_flag=True, help="No table and no progress bar.")
def main(topology: Path, only: Sequence[str], explain: bool, json_target: str | None,
         csv_target: str | None, plot: str | None, trace: str | None, collective: str | None,
         sizes: str, stack: str | None, strict: bool, quiet: bool) -> None:
    """Simulate the scenarios of a TOPOLOGY file and print the answer."""
    from sim.report.write import OutputError
    from sim.schema import TopologyError, exit_on_error, load

    targets = {"--json": json_target, "--csv": csv_target, "--plot": plot, "--trace": trace}
    try:
        _check_targets(targets, topology, collective)
        with exit_on_error():
            loaded = load(topology)
            from sim.cluster import Cluster

            cluster = Cluster(loaded)
            if collective is not None:
                _collective(cluster, collective, sizes, stack, targets, quiet)
                return
            scenarios = _chosen(loaded, only)
            report = answer(cluster, scenarios, record=bool(plot or trace), quiet=quiet)
    except (OutputError, TopologyError) as error:
        raise _usage(str(error)) from error
    try:
        _write(report, targets)
    except OutputError as error:
        raise _usage(str(error)) from error
    if not quiet:
        _print(report, explain=explain, to_stderr="-" in targets.values())
    if strict:
        from sim.report.table import outside

        sys.exit(int(any(outside(row) for row in report.scenarios)))


def _usage(message: str) -> SystemExit:
    click.echo(f"error: {message}", err=True)
    return SystemExit(2)


def _check_targets(targets: dict[str, str | None], topology: Path, collective: str | None) -> None:
    from sim.report.write import OutputError, check_target, check_targets

    check_targets(targets, inputs=[str(topology)])
    for option, target in targets.items():
        if target is None:
            continue
        if collective is not None and option in ("--plot", "--trace"):
            raise OutputError(f"{option} shows training steps, which --collective does not run")
        if option == "--plot":
            from sim.report.plot import SUFFIXES

            check_target(target, SUFFIXES, stdout=False)
        else:
            check_target(target, stdout=option != "--trace")


def _chosen(topology: Topology, only: Sequence[str]) -> list[Scenario]:
    from sim.schema.errors import unknown

    names = [scenario.name for scenario in topology.scenarios]
    for name in only:
        if name not in names:
            raise topology.error(unknown("scenario", name, names))
    return [s for s in topology.scenarios if not only or s.name in only]


def answer(cluster: Cluster, scenarios: Iterable[Scenario], *, record: bool = False,
           quiet: bool = True) -> Report:
    """Simulate scenarios at all their numbers of GPUs; intervals where rows have expectations.

    Args:
        cluster: the built topology.
        scenarios: those to run.
        record: keep utilisation over time, for plots and traces.
        quiet: no progress bar.
    """
    from sim.report.progress import progress
    from sim.results import Report
    from sim.scenario import Settings, run_scenario

    topology = cluster.topology
    rows = [(scenario, gpus) for scenario in scenarios for gpus in topology.gpu_counts(scenario)]
    results: list[ScenarioResult] = []
    with progress(len(rows), topology.name, quiet=quiet) as advance:
        for scenario, gpus in rows:
            advance(0, f"{scenario.name}, {gpus} GPUs")
            results += run_scenario(cluster, scenario, gpus, Settings(record_links=record))
            advance()
    return Report(topology.name, topology.seed, tuple(_with_intervals(cluster, rows, results)))


def _with_intervals(cluster: Cluster, rows: Sequence[tuple[Scenario, int]],
                    results: Sequence[ScenarioResult]) -> list[ScenarioResult]:
    """Add intervals to the rows that no parameter was fitted to, if the file fits any."""
    from dataclasses import replace

    from sim.fit import intervals

    fitted = {(e.scenario, e.gpus) for e in cluster.topology.expect if e.kind == "fitted"}
    if not any(e.fits for e in cluster.topology.expect) or len(rows) != len(results):
        return list(results)
    open_rows = [i for i, (scenario, gpus) in enumerate(rows)
                 if (scenario.name, gpus) not in fitted]
    found = dict(zip(open_rows, intervals(cluster, [rows[i] for i in open_rows]), strict=True))
    return [replace(result, interval=found.get(i)) for i, result in enumerate(results)]


def _write(report: Report, targets: dict[str, str | None]) -> None:
    from sim.report.write import write_bytes, write_text

    if target := targets["--json"]:
        from sim.report.jsonout import report_json

        write_text(target, report_json(report))
    if target := targets["--csv"]:
        from sim.report.csvout import report_csv

        write_text(target, report_csv(report))
    if target := targets["--plot"]:
        from sim.report.plot import report_plot

        write_bytes(target, report_plot(report, target))
    if target := targets["--trace"]:
        from sim.report.trace import report_trace

        write_text(target, report_trace(report))


def _print(report: Report, *, explain: bool, to_stderr: bool) -> None:
    from sim.report.screen import console_for
    from sim.report.table import print_report

    console = console_for(sys.stderr if to_stderr else sys.stdout)
    print_report(report, console=console)
    if explain:
        from sim.report.explain import print_explanation

        print_explanation(report, console=console)


def _collective(cluster: Cluster, collective: str, sizes: str, stack: str | None,
                targets: dict[str, str | None], quiet: bool) -> None:
    from sim.collective_bench import measure, parse_sizes
    from sim.report.nccl_table import print_collective
    from sim.report.write import write_text

    try:
        wanted = parse_sizes(sizes)
    except ValueError as error:
        raise _usage(f"--sizes {sizes}: {error}") from error
    report: CollectiveReport = measure(cluster, collective, wanted, stack)
    if target := targets["--json"]:
        from sim.report.jsonout import collective_json

        write_text(target, collective_json(report))
    if target := targets["--csv"]:
        from sim.report.csvout import collective_csv

        write_text(target, collective_csv(report))
    if not quiet:
        from sim.report.screen import console_for

        print_collective(report, console=console_for(
            sys.stderr if "-" in targets.values() else sys.stdout))


if __name__ == "__main__":
    main()
