"""What was there before the first change: a file with the value of each knob that was turned.

It is written before a knob is turned, so that a run that ends half-way can be undone, and holds the
first value of each knob, however often the host is set up.
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
        raise click.ClickException(f"{FILE} does not say what was there before harp setup: "
                                   "repair it, or remove it to go on without undo") from None


def remember(host: Host, values: dict[str, str | None]) -> None:
    """Add values that are not yet known."""
    known = load(host)
    if values.keys() - known.keys():
        host.store(FILE, json.dumps({"before": {**values, **known}}, indent=1) + "\n")


def forget(host: Host) -> None:
    """Everything is as it was."""
    host.store(FILE, None)
