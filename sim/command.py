"""A click command that reports every mistake of its user in one sentence.

Errors of options, of the topology file and of outputs all end with status 2 and ``error: ...`` on
standard error; an interrupted command ends with status 130, as a shell expects.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from collections.abc import Callable


def plain_command(function: Callable[..., object]) -> PlainCommand:
    """Make a `PlainCommand` with ``-h`` and ``--version``."""
    settings = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}
    versioned = click.version_option(package_name="harp-stack", message="%(package)s %(version)s")
    return click.command(cls=PlainCommand, context_settings=settings)(versioned(function))


class PlainCommand(click.Command):
    """See the module's manual."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        """Run the command and end the process with its status."""
        try:
            status = super().main(*args, **options | {"standalone_mode": False})
        except click.Abort:
            sys.exit(130)
        except click.ClickException as error:
            _exit(error.format_message())
        except Exception as error:
            from lab.namespace import LabError
            from sim.network.interface import NetworkError
            from sim.schema.errors import TopologyError

            if not isinstance(error, NetworkError | TopologyError | LabError):
                raise
            _exit(str(error))
        sys.exit(status if isinstance(status, int) else 0)


def _exit(message: str) -> NoReturn:
    from sim.schema.errors import printable

    click.echo(f"error: {printable(message)}", err=True)
    raise SystemExit(2)
