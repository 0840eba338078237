"""Command line: ``python -m sim.tune topology.yaml -o tuning.json`` says what NCCL should take.

Simulates every algorithm, protocol and number of channels that NCCL can have by size, and writes a
table where another choice than NCCL's own pays, for the plugin's tuner (``HARP_TUNER``) and for
``sim.run --collective NAME --tuned tuning.json``. With ``--measured`` the times are those of logs
of nccl-tests. docs/tuning.md is the manual.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sim.command import plain_command

if TYPE_CHECKING:
    from sim.answer.tune import Tuned
    from sim.schema.model import Topology
    from sim.schema.scenario import Scenario

SIZES = "8:1GiB:2"
PATH = click.Path(path_type=Path)


@plain_command
@click.argument("topology", type=PATH, required=False)
@click.option("-o", "--output", metavar="FILE|-", help="Write the table here.")
@click.option("--scenario", metavar="NAME", help="Whose stack and settings; the first by default.")
@click.option("--stack", metavar="NAME", help="Host stack; the scenario's by default.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE",
              help="Change a value of the file (may be repeated).")
@click.option("--sizes", metavar="FROM:TO:FACTOR", help=f"Sizes to simulate.  [{SIZES}]")
@click.option("--budget", metavar="TIME", help="Stop simulating sizes after so long.  [60s]")
@click.option("--measured", multiple=True, metavar="CHOICE=LOG",
              help="Take times from logs of all_reduce_perf instead: 'nccl=own.log' for NCCL's "
                   "own choice, 'Tree LL=tree.log' for what NCCL_ALGO and NCCL_PROTO forced.")
@click.option("--nodes", type=click.IntRange(1), help="Hosts of --measured, where logs name none.")
@click.option("--quiet", is_flag=True, help="No table and no progress bar.")
def main(topology: Path | None, *, output: str | None, scenario: str | None, stack: str | None,
         changes: tuple[str, ...], sizes: str | None, budget: str | None,
         measured: tuple[str, ...], nodes: int | None, quiet: bool) -> None:
    """Find the algorithm, protocol and channels that NCCL should take, by size.

    \b
    python -m sim.tune cluster.yaml -o tuning.json
    """  # noqa: D301  (click's mark)
    from harp.collectives.tuning import Tuning
    from sim.report.screen import console_for
    from sim.report.tuning_table import print_tuned
    from sim.report.write import check_target, check_targets, write_text

    if output is not None:
        logs = [Path(given.partition("=")[2]) for given in measured]
        check_targets({"-o": output}, inputs=[str(path) for path in (topology, *logs) if path])
        check_target(output, (".json",))
    if measured:
        others = {"TOPOLOGY": topology, "--scenario": scenario, "--stack": stack,
                  "--set": changes, "--sizes": sizes, "--budget": budget}
        _refuse({name for name, given in others.items() if given}, "--measured")
        from sim.calibration.tune_measured import tune_measured

        tuned, source = tune_measured(measured, nodes)
    elif topology is None:
        raise click.UsageError("give a topology file, or --measured")
    else:
        _refuse({"--nodes"} if nodes else set(), "a topology")
        tuned, source = _simulate(topology, changes, scenario, stack, sizes or SIZES,
                                  budget or "60s", quiet=quiet)
    if output is not None:
        write_text(output, Tuning((tuned.communicator,), source).to_json())
    if not quiet:
        print_tuned(tuned, console=console_for(sys.stderr if output == "-" else sys.stdout))


def _refuse(given: set[str], beside: str) -> None:
    if given:
        raise click.UsageError(f"{min(given)} has no meaning with {beside}")


def _simulate(path: Path, changes: tuple[str, ...], name: str | None, stack: str | None,
              sizes: str, budget: str, *, quiet: bool) -> tuple[Tuned, dict[str, object]]:
    from sim.answer.collective_bench import parse_sizes
    from sim.answer.progress import progress
    from sim.answer.tune import tune
    from sim.cluster.cluster import Cluster
    from sim.network.nccl import PLANS
    from sim.schema import load
    from sim.schema.errors import Problem
    from sim.schema.units import DURATION

    topology = load(path, changes)
    scenario = _scenario(topology, name)
    _check_stack(topology, stack)
    try:
        wanted, budget_s = parse_sizes(sizes), DURATION.parse(budget)
    except Problem as problem:
        raise click.UsageError(f"--budget {budget}: {problem}; allowed: {problem.allowed}"
                               ) from None
    except ValueError as error:
        raise click.UsageError(f"--sizes {sizes}: {error}") from error
    cluster = Cluster(topology)
    if cluster.gpus == 1:
        raise click.UsageError("a collective needs two GPUs, and this cluster has one")
    with progress(len(wanted) * len(PLANS), topology.name, quiet=quiet) as advance:
        tuned = tune(cluster, scenario, wanted, budget_s, advance, stack)
    told = repr((topology.sha256, topology.changes, scenario.name, stack))
    return tuned, {"kind": "simulated", "files": [path.name],
                   "fingerprint": hashlib.sha256(told.encode()).hexdigest()[:16],
                   "scenario": scenario.name, "stack": stack or scenario.stack,
                   "fidelity": "flow", "changes": list(topology.changes),
                   "tried": f"{tuned.tried} of {tuned.of} sizes"}


def _scenario(topology: Topology, name: str | None) -> Scenario:
    _known("--scenario", "scenario", name, [one.name for one in topology.scenarios])
    return next(one for one in topology.scenarios if name in (None, one.name))


def _check_stack(topology: Topology, stack: str | None) -> None:
    from sim.schema.parameters import shipped

    _known("--stack", "stack", stack, [*shipped("stacks"), *topology.stacks])


def _known(option: str, what: str, name: str | None, names: list[str]) -> None:
    from sim.schema.errors import TopologyError, unknown

    if name is not None and name not in names:
        raise click.UsageError(str(TopologyError(option, unknown(what, name, names))))


if __name__ == "__main__":
    main()
