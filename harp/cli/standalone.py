"""A click command as a program of its own: every failure ends in one sentence.

Its status is 2 if the command was used wrongly, 1 if it failed, 130 after Ctrl-C.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from harp.cli.io import drop_output, reason_of
from harp.net.errors import HarpError
from harp.reading import printable


def run_program(command: click.Command, name: str) -> NoReturn:
    """Run a command, which help calls ``name``, and end the process with its status."""
    try:
        status = command.main(prog_name=name, standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click 8.2; 8.1 shows the help itself
            click.echo(error.format_message())
            sys.exit(2)
        _print_error(error.format_message())
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)
    except HarpError as error:
        _print_error(str(error))
        sys.exit(1)
    except OSError as error:
        drop_output(sys.stdout)
        _print_error(reason_of(error))
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


def _print_error(message: str) -> None:
    click.echo(f"error: {printable(message)}", err=True)
