"""Command line: ``python -m sim.calibrate`` finds parameters from data.

``python -m sim.calibrate topologies/taco-vgg16-v100-25g.yaml`` fits the parameters that the file's
rows name under ``expect[].fits`` and compares the shipped values with them: status 1 if one is
stale. ``python -m sim.calibrate --stack harp --from measurements.json -o out.yaml`` derives a host
stack's parameters from measurements. ``python -m sim.calibrate --published`` fits kernel-tcp to
published measurements of many clusters. A wrong file or option ends with status 2 and one sentence,
and nothing is written. docs/use/calibrate.md is the manual.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from sim.command import plain_command

PATH = click.Path(path_type=Path)


@plain_command
@click.argument("topology", type=PATH, required=False)
@click.option("--stack", help="Host stack to derive from measurements, e.g. harp.")
@click.option("--from", "measurements", type=PATH, metavar="FILE",
              help="Measurements in JSON (ours, iperf3's or nccl-tests'), or a log of nccl-tests' "
                   "all_reduce_perf.")
@click.option("--topology", "cluster", type=PATH, metavar="FILE",
              help="Topology file of the cluster on which the log was made.")
@click.option("-o", "--output", metavar="FILE|-", help="Write the stack's parameters as YAML.")
@click.option("--published", is_flag=True,
              help="Fit kernel-tcp to the published measurements of many clusters.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def main(topology: Path | None, *, stack: str | None, measurements: Path | None,
         cluster: Path | None, output: str | None, published: bool, as_json: bool) -> int:
    """Fit the parameters that TOPOLOGY's rows name and compare them with the shipped values.

    With --stack and --from, derive a host stack's parameters from measurements instead.
    """
    derives = stack is not None or measurements is not None
    if published:
        if derives or topology or cluster or output:
            raise click.UsageError("--published works only alone or with --json")
        return int(_hold_published(as_json=as_json))
    if not derives and topology is not None and cluster is None and output is None:
        return int(_hold(topology, as_json=as_json))
    if stack is None or measurements is None or topology is not None:
        raise click.UsageError("give a topology file alone, or --stack and --from, with the "
                               "cluster as --topology")
    _derive(stack, measurements, cluster, output, as_json=as_json)
    return 0


def _hold(path: Path, *, as_json: bool) -> bool:
    """Compare shipped values with the fit; whether one is stale."""
    from sim.calibration import shipped

    cluster, comparisons = shipped.compare_file(path)
    stale = any(comparison.stale for comparison in comparisons)
    if as_json:
        _print_json(shipped.comparisons_json(cluster, comparisons))
    else:
        shipped.print_comparisons(comparisons)
    if stale:
        click.echo(f"error: {shipped.verdict(comparisons)}", err=True)
    return stale


def _hold_published(*, as_json: bool) -> bool:
    """Fit stacks to published measurements; whether a shipped value is stale."""
    from sim.calibration import joint_fit

    fits = joint_fit.fit_published()
    if as_json:
        _print_json(joint_fit.fits_json(fits))
    else:
        for fit in fits:
            joint_fit.print_fit(fit)
    stale = [name for fit in fits for name in fit.stale]
    if stale:
        click.echo(f"error: Stale: {', '.join(stale)}; write the fitted values into the stacks' "
                   "files.", err=True)
    return bool(stale)


def _derive(stack: str, measurements: Path, cluster: Path | None, output: str | None, *,
            as_json: bool) -> None:
    from harp.cli.io import check_target, check_targets
    from sim.calibration import stack_file
    from sim.report.screen import console_for

    if output is not None:
        inputs = [str(path) for path in (measurements, cluster) if path is not None]
        check_targets({"-o": output, "--json": "-" if as_json else None}, inputs=inputs)
        check_target(output, (".yaml", ".yml"))
    calibration = stack_file.calibrate(stack, measurements, cluster)
    if output is not None:
        stack_file.write_stack(calibration, output)
    if as_json:
        _print_json(stack_file.calibration_json(calibration))
    else:
        stack_file.print_calibration(
            calibration, console_for(sys.stderr if output == "-" else sys.stdout))


def _print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


if __name__ == "__main__":
    main()
