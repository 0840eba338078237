"""Command line: ``python -m sim.calibrate`` finds parameters from data.

``python -m sim.calibrate topologies/taco-vgg16-v100-25g.yaml`` fits the parameters that the file's
rows name under ``expect[].fits`` and holds the shipped values against them: status 1 where one is
stale. ``python -m sim.calibrate --stack harp --from measurements.json -o out.yaml`` derives a host
stack's parameters from measurements. docs/calibrate.md is the manual.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

PATH = click.Path(path_type=Path)


@click.command(context_settings={"max_content_width": 100})
@click.argument("topology", type=PATH, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def main(topology: Path | None, as_json: bool) -> None:
    """Fit the parameters that TOPOLOGY's rows name and compare them with what is shipped."""
    from sim.schema import exit_on_error  # noqa: PLC0415 - so that --help is quick

    if topology is None:
        raise click.UsageError("give a topology file, or --stack and --from")
    with exit_on_error():
        stale = _hold(topology, as_json=as_json)
    sys.exit(int(stale))


def _hold(path: Path, *, as_json: bool) -> bool:
    """Compare shipped values with the fit, and tell whether one is stale."""
    from sim.calibration import shipped  # noqa: PLC0415 - the simulator comes with it

    cluster, comparisons = shipped.compare_file(path)
    stale = any(comparison.stale for comparison in comparisons)
    if as_json:
        _print_json(shipped.comparisons_json(cluster, comparisons))
    else:
        shipped.print_comparisons(comparisons)
    if stale:
        click.echo(f"error: {shipped.verdict(comparisons)}", err=True)
    return stale


def _print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


if __name__ == "__main__":
    main()
