"""Command line: ``python -m sim.compare A.yaml B.yaml`` says what changed, and what it changes.

It prints two lists, like a diff: the keys in which the files differ, and the rows of their answers,
those of one scenario and number of GPUs side by side. Hosts, scenarios and the like are matched by
their names. ``--help`` lists the options; a wrong file or option ends with status 2 and one
sentence.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sim.command import plain_command, set_option


@plain_command
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@set_option("Change a value of both files, e.g. workload.batch=64")
@click.option("--scenario", multiple=True,
              help="Compare only this scenario's rows (may be repeated).")
@click.option("--draws", type=click.IntRange(0, 10_000), metavar="N",
              help="Draws of the uncertain parameters; 0 for none. [24, or as many as some seconds "
                   "allow]")
@click.option("--json", "target", metavar="FILE|-", help="Write the comparison as JSON.")
@click.option("--quiet", is_flag=True, help="No tables and no progress bar.")
def main(before: Path, after: Path, *, changes: tuple[str, ...], scenario: tuple[str, ...],
         draws: int | None, target: str | None, quiet: bool) -> int:
    """Compare the topology files BEFORE and AFTER: their keys, and their answers."""
    from harp.cli.io import OutputError, check_target, check_targets, write_text
    from sim.answer.comparison import compare
    from sim.schema import load

    if target is not None:
        check_targets({"--json": target}, inputs=[str(before), str(after)])
        try:
            check_target(target)
        except OutputError as error:
            raise click.UsageError(f"--json: {error}") from error
    compared = compare(load(before, changes), load(after, changes), scenario, draws, quiet=quiet)
    if target is not None:
        from sim.report.comparison_table import comparison_json

        write_text(target, comparison_json(compared, str(before), str(after)))
    if not quiet:
        from sim.report.comparison_table import print_comparison
        from sim.report.screen import console_for

        stream = sys.stderr if target == "-" else sys.stdout
        print_comparison(compared, str(before), str(after), console=console_for(stream))
    return 0


if __name__ == "__main__":
    main()
