"""Numbers and programs that a command is given, where Python's own reading says too little."""

from __future__ import annotations

import contextlib
import errno
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator


class Number(click.FloatRange):
    """A number within bounds, which "nan" is not although it is outside of none."""

    def convert(self, value: Any, param: click.Parameter | None,
                ctx: click.Context | None) -> float:
        """Read it."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


def whole(text: str) -> int | None:
    """Read digits as a number; None if there are others, or more than any number here has."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


@contextlib.contextmanager
def starting(name: str) -> Iterator[None]:
    """Turn the OSError of a program that does not start into a usage error."""
    try:
        yield
    except OSError as error:
        raise click.UsageError(_why_not_started(name, error)) from None


def _why_not_started(name: str, error: OSError) -> str:
    """Say in one sentence why the kernel did not start a program.

    The kernel reports a script's interpreter that is not there as if the script were not there.
    """
    if error.errno == errno.ENOEXEC:
        return (f"{name!r} is neither a program of this machine nor a script: the first line of a "
                "script is #! and its interpreter, as in #!/usr/bin/env python")
    if error.errno == errno.ENOENT and Path(name).exists():
        return f"{name!r} cannot be started: the interpreter in its first line is not there"
    return f"{name!r} cannot be started: {(error.strerror or '').lower()}"
