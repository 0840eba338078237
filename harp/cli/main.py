"""The command ``harp``: one subcommand a module, loaded when it is used."""

from __future__ import annotations

import importlib
import os
from typing import NoReturn

import click

from harp.cli.standalone import run_program
from harp.nearest import nearest_name

COMMANDS = {
    "check": "Report what this host can do for HARP, and what to change.",
    "perf": "Measure messages between two hosts, or on this host alone.",
    "top": "Show what the engines of this host are doing.",
    "diagnose": "Find what slows down or breaks a running job.",
    "decode": "List the HARP frames of a packet capture.",
    "setup": "Prepare this host for HARP, or undo that.",
    "probe": "Find the path through the network of each UDP source port.",
    "plan": "Plan the paths of a job's flows over switches that hash.",
    "run": "Start a command as several ranks, here and on other hosts.",
    "recompiles": "Run a program, and list what torch compiled again, and why.",
    "env": "Print the environment that makes NCCL use HARP.",
    "plugin-path": "Print the path of the NCCL plugin.",
    "sim": "Run a program of the simulator: run, compare, sweep, tune ...",
}
MODULES = {"plugin-path": "env"}
"""Modules of commands that do not have their command's name."""
COMPLETION = "_HARP_COMPLETE"
"""Variable of click: a shell sets it to ask for its script, or for the words that fit."""


class Commands(click.Group):
    """Subcommands by name; a module is loaded when its command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's)
        """List them in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context,  # noqa: ARG002
                    cmd_name: str) -> click.Command | None:
        """Load the module of a command."""
        if cmd_name not in COMMANDS:
            near = nearest_name(cmd_name, COMMANDS)
            hint = f" Did you mean {near!r}?" if near else ""
            raise click.UsageError(f"No such command {cmd_name!r}.{hint}")
        module = MODULES.get(cmd_name, cmd_name)
        command = getattr(importlib.import_module(f"harp.cli.{module}"), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context,  # noqa: ARG002
                        formatter: click.HelpFormatter) -> None:
        """List them without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="harp-stack", message="%(package)s %(version)s")
def harp() -> None:
    """Tools of the HARP network stack."""


def main() -> NoReturn:
    """Run the command and end the process with its status."""
    if COMPLETION in os.environ:
        from harp.cli.fish_completion import register

        register()
    run_program(harp, "harp")


if __name__ == "__main__":
    main()
