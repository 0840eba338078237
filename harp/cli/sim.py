"""``harp sim NAME ...``: the programs of the simulator, as `python -m sim.NAME ...` runs them."""

from __future__ import annotations

import importlib
import runpy
import sys

import click
from click.shell_completion import CompletionItem

from harp.nearest import nearest_name

PROGRAMS = {
    "run": "Predict training or collectives of a topology file.",
    "compare": "Show what changed between two topology files and their answers.",
    "sweep": "Run a design of many points.",
    "tune": "Search for settings.",
    "validate": "Score predictions by figures that were measured.",
    "calibrate": "Fit parameters to measurements.",
    "trace": "Replay execution traces, or write them.",
    "convert": "Read and write other formats of clusters.",
}


class Programs(click.Command):
    """Lets a shell complete what stands after ``harp sim`` as the program itself would have it."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete options of the program that is named."""
        program = ctx.params.get("program")
        if program not in PROGRAMS:
            return super().shell_complete(ctx, incomplete)
        command: click.Command = importlib.import_module(f"sim.{program}").main
        return command.shell_complete(click.Context(command), incomplete)


def _programs(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in PROGRAMS if name.startswith(incomplete)]


def _files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


@click.command(cls=Programs,
               context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False,
                                 "help_option_names": ["-h", "--help"]},
               epilog="\b\nPrograms:\n" + "\n".join(f"  {name:<10} {text}"
                                                    for name, text in PROGRAMS.items()))
@click.argument("program", metavar="PROGRAM", default="", shell_complete=_programs)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...",
                shell_complete=_files)
def sim(program: str, arguments: tuple[str, ...]) -> None:
    """Run a program of the simulator, as `python -m sim.PROGRAM` does."""
    if program not in PROGRAMS:
        near = nearest_name(program, PROGRAMS)
        hint = f" Did you mean {near!r}?" if near else f" Allowed: {', '.join(PROGRAMS)}."
        raise click.UsageError((f"No such program {program!r}." if program else
                                "Missing argument 'PROGRAM'.") + hint)
    sys.argv = [f"sim.{program}", *arguments]
    runpy.run_module(f"sim.{program}", run_name="__main__", alter_sys=True)
