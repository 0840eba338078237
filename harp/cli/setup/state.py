"""The values of before the first change: a file with the old value of each changed knob.

It is written before a knob is changed, so that an interrupted run can be undone. It keeps the first
value of each knob, however often the host is set up.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harp.cli.setup.host import Host

FILE = "/var/lib/harp/setup.json"


def load(host: Host) -> dict[str, str | None]:
    """Give the values of before, by the knobs' keys."""
    text = host.read(FILE)
    if text is None:
        return {}
    try:
        before = json.loads(text)["before"]
        return {str(key): None if value is None else str(value) for key, value in before.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise click.ClickException(f"{FILE} cannot be read, so undo is not possible: repair it, "
                                   "or remove it to continue without undo") from None


def remember(host: Host, values: dict[str, str | None]) -> None:
    """Save the values of knobs that are not in the file yet."""
    known = load(host)
    if values.keys() - known.keys():
        host.store(FILE, json.dumps({"before": {**values, **known}}, indent=1) + "\n")


def forget(host: Host) -> None:
    """Remove the file: everything is restored."""
    host.store(FILE, None)
