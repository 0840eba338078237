"""A click command that reports every mistake of its user in one sentence.

Errors of options, of the topology file and of outputs all end with status 2 and ``error: ...`` on
standard error; an interrupted command ends with status 130, as a shell expects.

`set_option` is ``--set``. The shell completes paths from where the command runs, so a path in its
value is taken from there, while paths in a file are taken from the file's folder.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from collections.abc import Callable


def plain_command(function: Callable[..., object]) -> PlainCommand:
    """Make a `PlainCommand` with ``-h`` and ``--version``."""
    settings = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}
    versioned = click.version_option(package_name="harp-stack", message="%(package)s %(version)s")
    return click.command(cls=PlainCommand, context_settings=settings)(versioned(function))


def set_option(says: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Make the option ``--set KEY=VALUE`` of a command, whose help ``says`` what it changes."""
    return click.option("--set", "changes", multiple=True, metavar="KEY=VALUE",
                        callback=lambda _context, _option, changes: tuple(map(_from_here, changes)),
                        help=f"{says} (may be repeated).")


_PATH_KEY = re.compile(r"((?:.*\.)?workload\.(?:model|trace|trace\.prefix|trace\.groups))=(.+)")
"""A change of a key that can be a path."""


def _from_here(change: str) -> str:
    """Complete a path that begins at the working directory, where it names something there."""
    match = _PATH_KEY.fullmatch(change)
    if match is None:
        return change
    from sim.schema.transformer_keys import is_model_path

    if match[1].endswith("model") and not is_model_path(match[2]):
        return change
    path = Path(match[2]).absolute()
    try:
        here = path.is_file() or any(path.parent.glob(f"{path.name}*.et"))
    except (OSError, ValueError):
        return change
    return f"{match[1]}={path}" if here else change


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
        except OSError as error:
            from harp.cli.io import drop_output, reason_of

            drop_output(sys.stdout)
            _exit(reason_of(error), 1)
        except Exception as error:
            from lab.namespace import LabError
            from sim.network.interface import NetworkError
            from sim.schema.input_errors import TopologyError

            if not isinstance(error, NetworkError | TopologyError | LabError):
                raise
            _exit(str(error))
        sys.exit(status if isinstance(status, int) else 0)


def _exit(message: str, status: int = 2) -> NoReturn:
    from harp.reading import printable

    click.echo(f"error: {printable(message)}", err=True)
    raise SystemExit(status)
