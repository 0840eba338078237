"""Command line: ``python -m sim.tune topology.yaml -o tuning.json`` tunes NCCL by simulation.

It simulates every algorithm, protocol and number of channels of NCCL by size, and writes a table of
the choices that are faster than NCCL's own, for the plugin's tuner (``HARP_TUNER``) and for
``sim.run --collective NAME --tuned tuning.json``. With ``--measured`` the times come from logs of
nccl-tests. With ``--settings DIR`` it searches the settings with the shortest training step
instead, and writes an environment file, such a table and a report. With ``--layouts`` it searches
how the model is best split over the GPUs. docs/use/tuning.md is the manual.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harp.cli.options import Number
from sim.command import plain_command, set_option

if TYPE_CHECKING:
    from sim.answer.nccl_tuning import Tuned
    from sim.cluster.cluster import Cluster
    from sim.schema.scenario_keys import Scenario
    from sim.schema.topology_model import Topology

SIZES = "8:1GiB:2"
LAYOUT_BUDGET = "45s"
JOURNAL = "trials.journal"
PATH = click.Path(path_type=Path)


@plain_command
@click.argument("topology", type=PATH, required=False)
@click.option("-o", "--output", metavar="FILE|-", help="Write the table here.")
@click.option("--scenario", metavar="NAME",
              help="Scenario that gives stack and settings; the first by default.")
@click.option("--stack", metavar="NAME", help="Host stack; the scenario's by default.")
@set_option("Change a value of the file")
@click.option("--sizes", metavar="FROM:TO:FACTOR", help=f"Sizes to simulate.  [{SIZES}]")
@click.option("--budget", metavar="TIME", help="Time for simulating sizes.  [60s]")
@click.option("--measured", multiple=True, metavar="CHOICE=LOG",
              help="Take times from logs of all_reduce_perf instead: 'nccl=own.log' for NCCL's "
                   "own choice, 'Tree LL=tree.log' for a run with NCCL_ALGO and NCCL_PROTO set.")
@click.option("--nodes", type=click.IntRange(1), help="Hosts of --measured, if logs name none.")
@click.option("--settings", "folder", metavar="DIR", type=PATH,
              help="Search the settings of a training step (algorithm, groups, buckets, top-k, "
                   "channels, paths, engines) and write env, tuning.json and report.md here; "
                   "continues an earlier search.")
@click.option("--lossless", is_flag=True, help="For --settings: no top-k.")
@click.option("--ratio", "ratios", multiple=True, type=Number(0, 1, min_open=True),
              help="For --settings: share of the elements that top-k sends (may be repeated).  "
                   "[0.01]")
@click.option("--layouts", is_flag=True,
              help="Search how the model is split (tensor, pipeline, context, expert, shards, "
                   "micro-steps) within the GPUs' memory, or tiers and sizes of pages where the "
                   "scenario has offload, and print the Pareto front of speed and memory; -o "
                   "writes it as JSON.")
@click.option("--samples", type=click.IntRange(1), metavar="N",
              help="For --layouts: samples of a step.  [as the file has them]")
@click.option("--workers", type=click.IntRange(1, 1024), metavar="N",
              help="For --layouts: processes.  [one for each core]")
@click.option("--dask", metavar="ADDRESS", help="For --layouts: run on the workers of this Dask "
                                                "scheduler.")
@click.option("--quiet", is_flag=True, help="No table and no progress bar.")
def main(topology: Path | None, *, output: str | None, scenario: str | None, stack: str | None,
         changes: tuple[str, ...], sizes: str | None, budget: str | None,
         measured: tuple[str, ...], nodes: int | None, folder: Path | None, lossless: bool,
         ratios: tuple[float, ...], layouts: bool, samples: int | None, workers: int | None,
         dask: str | None, quiet: bool) -> None:
    """Find the algorithm, protocol and channels that NCCL should take, by size.

    \b
    python -m sim.tune cluster.yaml -o tuning.json
    python -m sim.tune cluster.yaml --settings tuned/
    python -m sim.tune cluster.yaml --layouts
    """  # noqa: D301  (click's mark)
    from harp.cli.io import check_target, check_targets, write_text
    from harp.collectives.tuning import Tuning
    from sim.report.screen import console_for
    from sim.report.tuning_tables import print_tuned

    of_layouts = {"--samples": samples, "--workers": workers, "--dask": dask}
    if layouts:
        others = {"--measured": measured, "--nodes": nodes, "--stack": stack, "--sizes": sizes,
                  "--settings": folder, "--lossless": lossless, "--ratio": ratios}
        _refuse({name for name, given in others.items() if given}, "--layouts")
        _layouts(topology, changes, scenario, output, samples, budget or LAYOUT_BUDGET, workers,
                 dask, quiet=quiet)
        return
    _refuse({name for name, given in of_layouts.items() if given}, "this; use --layouts")
    if folder is not None:
        _refuse({name for name, given in (("-o", output), ("--measured", measured),
                                          ("--nodes", nodes), ("--stack", stack)) if given},
                "--settings")
        if topology is None:
            raise click.UsageError("--settings needs a topology file")
        _search(topology, changes, scenario, folder, sizes or SIZES, budget or "60s",
                lossless=lossless, ratios=ratios or (0.01,), quiet=quiet)
        return
    _refuse({name for name, given in (("--lossless", lossless), ("--ratio", ratios)) if given},
            "NCCL's table; use --settings")
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
        raise click.UsageError(f"{min(given)} does not work with {beside}")


def _simulate(path: Path, changes: tuple[str, ...], name: str | None, stack: str | None,
              sizes: str, budget: str, *, quiet: bool) -> tuple[Tuned, dict[str, object]]:
    from sim.answer.nccl_tuning import tune
    from sim.answer.progress import progress
    from sim.cluster.cluster import Cluster
    from sim.network.nccl import PLANS
    from sim.schema import load

    topology = load(path, changes)
    scenario, budget_s = _scenario(topology, name), _budget_s(budget)
    _check_stack(topology, stack)
    wanted = _parse_sizes(sizes)
    cluster = Cluster(topology)
    _check_ranks(cluster)
    with progress(len(wanted) * len(PLANS), topology.name, quiet=quiet) as advance:
        tuned = tune(cluster, scenario, wanted, budget_s, advance, stack)
    key = repr((topology.sha256, topology.changes, scenario.name, stack))
    return tuned, {"kind": "simulated", "files": [path.name],
                   "fingerprint": hashlib.sha256(key.encode()).hexdigest()[:16],
                   "scenario": scenario.name, "stack": stack or scenario.stack,
                   "fidelity": "flow", "changes": list(topology.changes),
                   "tried": f"{tuned.tried} of {tuned.of} sizes"}


def _search(path: Path, changes: tuple[str, ...], name: str | None, folder: Path, sizes: str,
            budget: str, *, lossless: bool, ratios: tuple[float, ...], quiet: bool) -> None:
    """Search the settings of a step, and write env, table and report."""
    from harp.cli.io import check_folder, write_text
    from harp.collectives.tuning import Tuning
    from sim.answer.progress import progress
    from sim.answer.scenario import fusion_rule
    from sim.answer.settings_search import Space, require_optuna, search
    from sim.cluster.cluster import Cluster
    from sim.report.tuning_tables import env_file, settings_report
    from sim.schema import load

    topology = load(path, changes)
    scenario, budget_s = _scenario(topology, name), _budget_s(budget)
    cluster = Cluster(topology)
    _check_ranks(cluster)
    _parse_sizes(sizes)
    require_optuna()
    check_folder(folder, (JOURNAL, "tuning.json", "report.md", "env"))
    space = Space.of(cluster, scenario, lossless=lossless, ratios=ratios)
    with progress(budget_s, topology.name, quiet=quiet) as advance:
        found = search(cluster, scenario, space, folder / JOURNAL, advance,
                       budget_s=budget_s)
    tuned, source = _simulate(path, changes, name, None, sizes, budget, quiet=quiet)
    table = folder / "tuning.json"
    write_text(str(table), Tuning((tuned.communicator,), source).to_json())
    text = settings_report(found, topology.name, cluster.gpus, cluster.hosts)
    write_text(str(folder / "report.md"), text)
    own = str(table.resolve()) if found.best["algorithm"] == "nccl" else None
    rule = fusion_rule(cluster.topology, scenario, cluster.topology.workload)
    write_text(str(folder / "env"), env_file(found, rule, own))
    if not quiet:
        click.echo(text, nl=False)


def _layouts(path: Path | None, changes: tuple[str, ...], name: str | None, output: str | None,
             samples: int | None, budget: str, workers: int | None, dask: str | None, *,
             quiet: bool) -> None:
    """Search the layout of a model, and print and write the front."""
    from harp.cli.io import check_target, check_targets, write_text
    from sim.answer import layout_choices, page_choices
    from sim.answer.progress import progress
    from sim.cluster.cluster import Cluster
    from sim.report.screen import console_for
    from sim.schema import load
    from sim.sweeps.dask_cluster import check_dask
    from sim.sweeps.layout_table import document, print_search
    from sim.sweeps.layouts import Means, search
    from sim.sweeps.study import Study

    if path is None:
        raise click.UsageError("--layouts needs a topology file")
    if workers and dask is not None:
        raise click.UsageError("--workers is for this machine; a Dask cluster has its own")
    if output is not None:
        check_targets({"-o": output}, inputs=[str(path)])
        check_target(output, (".json",))
    if dask is not None:
        check_dask(dask)
    topology, means = load(path, changes), Means(_budget_s(budget), workers, dask)
    scenario = _scenario(topology, name)
    layout_choices.check_searchable(topology, scenario)
    wanted = samples or layout_choices.samples_of(topology, scenario)
    choices = layout_choices.choices if scenario.offload is None else page_choices.choices
    found, _ = choices(Cluster(topology), scenario, wanted)
    study = Study(str(path), topology.text.encode(), (scenario.name,))
    with progress(means.budget_s, topology.name, quiet=quiet) as advance:
        best = search(study, scenario, topology, found, wanted, means, advance)
    if output is not None:
        text = json.dumps(document(best, topology.name, scenario.name), indent=2)
        write_text(output, text + "\n")
    if not quiet:
        print_search(best, f"{topology.name}, {scenario.name}",
                     console=console_for(sys.stderr if output == "-" else sys.stdout))


def _budget_s(budget: str) -> float:
    from sim.schema.input_errors import Problem
    from sim.schema.units import DURATION

    try:
        return DURATION.parse(budget)
    except Problem as problem:
        raise click.UsageError(f"--budget {budget}: {problem}; allowed: {problem.allowed}"
                               ) from None


def _parse_sizes(sizes: str) -> list[int]:
    from sim.answer.collective_bench import parse_sizes

    try:
        return parse_sizes(sizes)
    except ValueError as error:
        raise click.UsageError(f"--sizes {sizes}: {error}") from error


def _check_ranks(cluster: Cluster) -> None:
    if cluster.gpus == 1:
        raise click.UsageError("a collective needs two GPUs, and this cluster has one")


def _scenario(topology: Topology, name: str | None) -> Scenario:
    _known("--scenario", "scenario", name, [one.name for one in topology.scenarios])
    return next(one for one in topology.scenarios if name in (None, one.name))


def _check_stack(topology: Topology, stack: str | None) -> None:
    from sim.schema.parameters import shipped

    _known("--stack", "stack", stack, [*shipped("stacks"), *topology.stacks])


def _known(option: str, what: str, name: str | None, names: list[str]) -> None:
    from sim.schema.input_errors import TopologyError, unknown

    if name is not None and name not in names:
        raise click.UsageError(str(TopologyError(option, unknown(what, name, names))))


if __name__ == "__main__":
    main()
