"""``harp recompiles``: run a program, and list what torch compiled again, and why.

>>> harp recompiles -- python train.py            # doctest: +SKIP
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harp.cli.options import starting
from harp.ttf.compiler.recompile_log import LIMIT, Compile, read_trace

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--json", "as_json", is_flag=True, help="Print the compilations as JSON.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def recompiles(command: tuple[str, ...], *, as_json: bool) -> int:
    """Run a command, and list each recompilation of torch.compile in it.

    A recompilation is listed with the guard that failed, the line of code that the guard is due to,
    the seconds that it took, and a remedy. The list comes on stdout when the command ends; what the
    command prints goes to stderr. The status is the command's.
    """
    with tempfile.TemporaryDirectory(prefix="harp-recompiles-") as folder:
        with starting(command[0]):
            status = subprocess.run(command, check=False, stdout=sys.stderr.fileno(),
                                    env={**os.environ, "TORCH_TRACE": folder}).returncode
        found = read_trace(Path(folder))
    if as_json:
        click.echo(json.dumps([{**asdict(each), "remedy": each.remedy} for each in found],
                              indent=2))
    else:
        click.echo(listed(found))
    return status if status >= 0 else 128 - status


def listed(found: Sequence[Compile]) -> str:
    """Write recompilations by the function that they are of, and the totals."""
    again = [each for each in found if each.guard]
    lines = []
    for each in again:
        code = f"  {each.code.split('  # ')[0]}" if each.code else ""
        lines += [f"{each.id:<7} {each.seconds:6.2f} s  {each.function} "
                  f"({_short(each.file)}:{each.line})",
                  *([f"        gave up: {each.gave_up}"] if each.gave_up else []),
                  f"        guard:  {each.guard}",
                  *([f"        at:     {_short(each.at)}{code}"] if each.at else []),
                  f"        remedy: {each.remedy}"]
    given_up = sorted({f"{each.function} ({_short(each.file)}:{each.line})" for each in found
                       if LIMIT in each.gave_up})
    lines += [f"{name} met the recompile limit: it runs eagerly from then on" for name in given_up]
    lines.append(f"{len(found) - len(again)} first compilations, {len(again)} recompilations, "
                 f"{sum(each.seconds for each in again):.1f} of "
                 f"{sum(each.seconds for each in found):.1f} s")
    return "\n".join(lines)


def _short(path: str) -> str:
    """Write a path from here, if it is below."""
    here = f"{Path.cwd()}{os.sep}"
    return path.removeprefix(here)
