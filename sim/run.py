"""Command line: ``python -m sim.run topology.yaml`` simulates the file's scenarios.

It prints a table with the published or measured figures beside the simulated ones. ``--help`` lists
the options. A wrong file or option ends with status 2 and one sentence, and nothing is written;
``--strict`` ends with status 1 if an answer misses its expectation.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sim.command import plain_command, set_option
from sim.network.fidelity import NETWORKS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from harp.collectives.tuning import Tuning
    from harp.routing.fabric import Fabric
    from sim.answer.collective_spread import Question
    from sim.cluster.cluster import Cluster
    from sim.network.interface import Capture
    from sim.records.results import CollectiveReport, Report
    from sim.schema.scenario_keys import Scenario
    from sim.schema.topology_model import Topology

COLLECTIVES = ("allreduce", "reduce-scatter", "allgather", "broadcast", "alltoall")
SIZES = "8:4GiB:2"


@dataclass(frozen=True)
class Options:
    """Options of the command line by name (``changes``: --set)."""

    changes: tuple[str, ...] = ()
    scenario: tuple[str, ...] = ()
    explain: bool = False
    json: str | None = None
    csv: str | None = None
    plot: str | None = None
    trace: str | None = None
    html: str | None = None
    collective: str | None = None
    sizes: str | None = None
    tuned: str | None = None
    stack: str | None = None
    strict: bool = False
    why: bool = False
    draws: int | None = None
    fidelity: str = "flow"
    pcap: str | None = None
    quiet: bool = False

    @property
    def targets(self) -> dict[str, str]:
        """Files (or ``-``) to write, by option."""
        named = {"--json": self.json, "--csv": self.csv, "--plot": self.plot, "--trace": self.trace,
                 "--html": self.html}
        return {option: target for option, target in named.items() if target is not None}

    @property
    def records(self) -> bool:
        """Whether an output shows utilisation over time."""
        return bool(self.plot or self.trace or self.html)

    @property
    def asks_why(self) -> bool:
        """Whether causes are wanted; a page has them where intervals are drawn anyway."""
        return self.why or bool(self.html and (self.fidelity == "flow" or self.draws))

    def command(self, topology: Path) -> str:
        """Command that gives the same answer again."""
        words = ["python", "-m", "sim.run", str(topology)]
        for option, values in (("--set", self.changes), ("--scenario", self.scenario)):
            words += [word for value in values for word in (option, value)]
        for option, value in (("--collective", self.collective), ("--sizes", self.sizes),
                              ("--tuned", self.tuned), ("--stack", self.stack)):
            words += [] if value is None else [option, value]
        if self.collective is not None:  # elsewhere a page has both anyway, where there is one
            words += [option for option, given in (("--explain", self.explain),
                                                   ("--why", self.why)) if given]
        if self.draws is not None:
            words += ["--draws", str(self.draws)]
        if self.fidelity != "flow":
            words += ["--fidelity", self.fidelity]
        return shlex.join([*words, *(word for option, target in self.targets.items()
                                     for word in (option, target))])

    @property
    def table_stream(self) -> str:
        """Stream of the table: standard error if an output goes to standard output."""
        return "stderr" if "-" in self.targets.values() else "stdout"


@plain_command
@click.argument("topology", type=click.Path(path_type=Path))
@set_option("Change a value of the file, e.g. hosts[0].nics[0].rate=100Gbps")
@click.option("--scenario", multiple=True, help="Run only this scenario (may be repeated).")
@click.option("--explain", is_flag=True, help="Show the parts of each step's or collective's time.")
@click.option("--json", metavar="FILE|-", help="Write the answer as JSON.")
@click.option("--csv", metavar="FILE|-", help="Write the answer as CSV.")
@click.option("--plot", metavar="FILE", help="Draw timeline, link utilisation and scaling.")
@click.option("--trace", metavar="FILE", help="Write a trace for ui.perfetto.dev.")
@click.option("--html", metavar="FILE", help="Write the answer as one page for a browser, with its "
                                             "causes, timelines and fabric.")
@click.option("--collective", metavar="NAME",
              help="Time one collective by every algorithm instead of training: "
                   f"{', '.join(COLLECTIVES)}.")
@click.option("--sizes", metavar="FROM:TO:FACTOR", help=f"Sizes of --collective.  [{SIZES}]")
@click.option("--tuned", metavar="FILE",
              help="Also time NCCL's choices with this tuning table (written by sim.tune).")
@click.option("--stack", help="Host stack of --collective; the scenario's by default.")
@click.option("--why", is_flag=True, help="Rank the causes of each row's interval.")
@click.option("--draws", type=click.IntRange(0, 10_000), metavar="N",
              help="Draws of the uncertain parameters for the intervals; 0 for none. [24, or as "
                   "many as some seconds allow]")
@click.option("--fidelity", default="flow", metavar="NAME", show_default=True,
              help=f"Network model: {', '.join(NETWORKS)}.")
@click.option("--pcap", metavar="LINK=FILE",
              help="Capture the packets of a link, e.g. 'node-0/eth0->leaf0=x.pcap', of one row at "
                   "--fidelity packet.")
@click.option("--strict", is_flag=True, help="Exit with status 1 if an answer misses its "
                                             "expectation.")
@click.option("--quiet", is_flag=True, help="No table and no progress bar.")
def main(topology: Path, **options: object) -> int:
    """Simulate the scenarios of a TOPOLOGY file and print the answer."""
    ask = Options(**options)  # type: ignore[arg-type]
    _check_options(ask)
    _check_targets(ask, topology)
    from sim.schema import load

    loaded = load(topology, ask.changes)
    scenarios = _chosen(loaded, ask.scenario)
    from sim.cluster.cluster import Cluster

    cluster = Cluster(loaded)
    capture = _capture(ask, cluster, scenarios)
    if ask.collective is not None:
        _time_collective(cluster, scenarios[0], ask, topology)
        return 0
    from harp.reading import printable
    from sim.answer.answer import answer

    report = answer(cluster, scenarios, record=ask.records, draws=ask.draws, why=ask.asks_why,
                    search_idle=True, quiet=ask.quiet, fidelity=ask.fidelity, capture=capture)
    for warned in report.warnings:
        click.echo(f"warning: {printable(warned.text)}", err=True)
    _write(report, ask, cluster, topology)
    if not ask.quiet:
        _print(report, ask)
    return _misses(report, quiet=ask.quiet) if ask.strict else 0


def _known(option: str, what: str, name: str, names: Collection[str]) -> None:
    """Raise a usage error with the nearest right name unless ``name`` is one of ``names``."""
    from sim.schema.input_errors import TopologyError, unknown

    if name not in names:
        raise click.UsageError(str(TopologyError(option, unknown(what, name, names))))


def _check_options(ask: Options) -> None:
    _known("--fidelity", "fidelity", ask.fidelity, NETWORKS)
    if ask.fidelity == "lab" and (ask.why or ask.draws):
        raise click.UsageError(f"{'--why' if ask.why else '--draws'} needs many runs, and "
                               "--fidelity lab is too slow for them")
    if ask.collective is None:
        for option, value in (("--sizes", ask.sizes), ("--stack", ask.stack),
                              ("--tuned", ask.tuned)):
            if value is not None:
                raise click.UsageError(f"{option} needs --collective")
        return
    _known("--collective", "collective", ask.collective, COLLECTIVES)
    training = {"--plot": ask.plot, "--trace": ask.trace, "--strict": ask.strict}
    for option, given in training.items():
        if given:
            raise click.UsageError(f"{option} is for training; --collective runs none")


def _capture(ask: Options, cluster: Cluster, scenarios: Sequence[Scenario]) -> Capture | None:
    """The link and file of --pcap."""
    from sim.network.interface import Capture

    if ask.pcap is None:
        return None
    link, _, path = ask.pcap.partition("=")  # no link has "=" in its name, a file may
    if not link or not path:
        raise click.UsageError(f"--pcap {ask.pcap}: give LINK=FILE, e.g. "
                               "'node-0/eth0->leaf0=x.pcap'")
    if ask.fidelity != "packet" or ask.collective is not None:
        raise click.UsageError("--pcap needs --fidelity packet, and no --collective")
    _require_link(cluster.fabric, link)
    rows = sum(len(cluster.topology.gpu_counts(scenario)) for scenario in scenarios)
    if rows != 1:
        raise click.UsageError(f"--pcap captures one row, but {rows} would run: choose one by "
                               "--scenario and --set scenarios[N].gpus=[M]")
    _check_target("--pcap", path)
    return Capture(link, path)


def _require_link(fabric: Fabric, name: str) -> None:
    from sim.schema.input_errors import nearest

    if name not in fabric.links_by_name:
        near = nearest(name, fabric.cable_names)
        raise click.UsageError(f"--pcap: {name!r} is not one of the fabric's "
                               f"{len(fabric.cable_names)} links, e.g. "
                               f"{fabric.cable_names[0]!r}"
                               + (f"; did you mean {near!r}?" if near else ""))


def _check_targets(ask: Options, topology: Path) -> None:
    from harp.cli.io import check_targets

    check_targets(ask.targets, inputs=[str(topology)])
    for option, target in ask.targets.items():
        _check_target(option, target)


def _check_target(option: str, target: str) -> None:
    from harp.cli.io import OutputError, check_target

    try:
        if option == "--plot":
            from sim.report.plot import SUFFIXES

            check_target(target, SUFFIXES, stdout=False)
        else:
            suffixes = (".html", ".htm") if option == "--html" else ()
            check_target(target, suffixes, stdout=option not in ("--trace", "--html"))
    except OutputError as error:
        raise click.UsageError(f"{option}: {error}") from error


def _chosen(topology: Topology, only: Sequence[str]) -> list[Scenario]:
    names = [scenario.name for scenario in topology.scenarios]
    for name in only:
        _known("--scenario", "scenario", name, names)
    return [s for s in topology.scenarios if not only or s.name in only]


def _write(report: Report, ask: Options, cluster: Cluster, topology: Path) -> None:
    """Write the outputs after all of them are made."""
    from harp.cli.io import write_files

    made: list[tuple[str, bytes]] = []
    for option, target in ask.targets.items():
        if option == "--json":
            from sim.report.export import report_json

            made.append((target, report_json(report).encode()))
        elif option == "--csv":
            from sim.report.export import report_csv

            made.append((target, report_csv(report).encode()))
        elif option == "--plot":
            from sim.report.plot import report_plot

            made.append((target, report_plot(report, target)))
        elif option == "--html":
            from sim.report.html.page import Made, report_html

            page = report_html(report, cluster, Made(ask.command(topology),
                                                     cluster.topology.text))
            made.append((target, page.encode()))
        else:
            from sim.report.chrome_trace import report_trace

            made.append((target, report_trace(report).encode()))
    write_files(dict(made))


def _print(report: Report, ask: Options) -> None:
    from sim.report.answer_table import print_report
    from sim.report.screen import console_for

    console = console_for(getattr(sys, ask.table_stream))
    print_report(report, console=console)
    if report.scenarios and report.scenarios[0].cost is not None:
        from sim.report.cost_table import print_costs

        print_costs(report, console=console)
    if ask.why:
        from sim.report.answer_table import print_causes

        print_causes(report, console=console)
    if ask.explain:
        from sim.report.answer_table import print_explanation

        print_explanation(report, console=console)


def _misses(report: Report, *, quiet: bool) -> int:
    """Status 1 if an answer misses its expectation, with a message if there is no table."""
    from sim.report.answer_table import label, outside
    from sim.report.numbers import rate_unit

    missed = [row for row in report.scenarios if outside(row)]
    for row in missed if quiet else ():
        assert row.expect is not None
        assert row.error is not None
        click.echo(f"{label(row)}: {row.images_per_s:.0f} {rate_unit([row])}, {row.error:+.1%} "
                   f"from the {row.expect.kind} {row.expect.images_per_s:g}; allowed: "
                   f"{row.expect.within:.1%}", err=True)
    return int(bool(missed))


def _time_collective(cluster: Cluster, scenario: Scenario, ask: Options,
                     topology: Path) -> None:
    from sim.answer.answer import origin_of
    from sim.answer.collective_bench import parse_sizes
    from sim.answer.collective_spread import Question, answer
    from sim.schema.parameters import shipped

    assert ask.collective is not None
    if ask.stack is not None:
        _known("--stack", "stack", ask.stack, [*shipped("stacks"), *cluster.topology.stacks])
    sizes = SIZES if ask.sizes is None else ask.sizes
    try:
        wanted = parse_sizes(sizes)
    except ValueError as error:
        raise click.UsageError(f"--sizes {sizes}: {error}") from error
    if cluster.gpus == 1:
        raise click.UsageError("--collective needs two GPUs, and this cluster has one")
    tuning = None if ask.tuned is None else _tuning(ask.tuned, ask.collective, cluster)
    question = Question(cluster, ask.collective, wanted, scenario, ask.stack or scenario.stack,
                        ask.fidelity, tuning)
    report = replace(answer(question, ask.draws, why=ask.asks_why, explain=ask.explain),
                     origin=origin_of(cluster.topology, ask.stack))
    _write_collective(report, ask, question, topology)
    if not ask.quiet:
        from sim.report.collective_table import (
            print_collective,
            print_collective_causes,
            print_limits,
        )
        from sim.report.screen import console_for

        console = console_for(getattr(sys, ask.table_stream))
        print_collective(report, console=console)
        if ask.why:
            print_collective_causes(report, console=console)
        if ask.explain:
            print_limits(report, console=console)


def _write_collective(report: CollectiveReport, ask: Options, question: Question,
                      topology: Path) -> None:
    """Write the outputs after all of them are made."""
    from harp.cli.io import write_files

    made: dict[str, bytes] = {}
    if ask.json is not None:
        from sim.report.export import collective_json

        made[ask.json] = collective_json(report).encode()
    if ask.csv is not None:
        from sim.report.export import collective_csv

        made[ask.csv] = collective_csv(report).encode()
    if ask.html is not None:
        from sim.report.html.collective_page import collective_html
        from sim.report.html.page import Made

        asked = question.cluster.topology
        page = collective_html(report, question.stack, asked.description,
                               Made(ask.command(topology), asked.text))
        made[ask.html] = page.encode()
    write_files(made)


def _tuning(path: str, collective: str, cluster: Cluster) -> Tuning:
    """The table of --tuned, which must have rows for this cluster's communicator."""
    from harp.cli.io import InputError, read_text
    from harp.collectives.tuning import Tuning, TuningError
    from sim.network.nccl import PLANS

    if collective not in PLANS:
        raise click.UsageError(f"--tuned does not work for {collective}: only NCCL's choices for "
                               f"{', '.join(PLANS)} are simulated")
    try:
        tuning = Tuning.from_json(read_text(Path(path)))
    except InputError as error:
        raise click.UsageError(f"--tuned {error.message}") from error
    except TuningError as error:
        raise click.UsageError(f"--tuned {path} is no tuning table: {error}") from error
    if not tuning.has(cluster.gpus, cluster.hosts):
        known = ", ".join(f"{one.ranks} on {one.nodes}" for one in tuning.communicators)
        raise click.UsageError(f"--tuned {path} has no rows for {cluster.gpus} ranks on "
                               f"{cluster.hosts} hosts, only for {known or 'none'}")
    return tuning


if __name__ == "__main__":
    main()
