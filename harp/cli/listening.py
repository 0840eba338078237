"""What is said where a command cannot listen."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def naming_address(address: str, port: int) -> Iterator[None]:
    """Turn an error of what listens into one sentence that names where."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"TCP port {port} of {address} cannot be listened on: "
                                   f"{error.strerror}") from None
