"""The values of before the first change: a file with the old value of each changed knob.

It is written before a knob is changed, so that an interrupted run can be undone. It keeps the first
value of each knob, however often the host is set up.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from harp.cli.setup.knobs import is_key
from harp.reading import FileError, parse

if TYPE_CHECKING:
    from harp.cli.setup.host_access import Host

FILE = "/var/lib/harp/setup.json"


def load(host: Host) -> dict[str, str | None]:
    """Give the values of before, by the knobs' keys."""
    text = host.read(FILE)
    try:
        if text is None and not host.find(FILE):
            return {}
        if text is None:
            raise FileError("it is a directory, or this user may not read it")
        return _before(text)
    except FileError as error:
        raise click.ClickException(f"{FILE} cannot be read, so undo is not possible: {error}; "
                                   "repair it, or remove it to continue without undo") from None


def _before(text: str) -> dict[str, str | None]:
    before = dict(parse(text)["before"].items())
    if wrong := [key for key in before if not is_key(key)]:
        raise FileError(f"before has {wrong[0]!r}, which harp setup does not change")
    return {key: None if value.is_none() else value.text() for key, value in before.items()}


def remember(host: Host, values: dict[str, str | None]) -> None:
    """Save the values of knobs that are not in the file yet."""
    known = load(host)
    if values.keys() - known.keys():
        host.store(FILE, json.dumps({"before": {**values, **known}}, indent=1) + "\n")


def forget(host: Host) -> None:
    """Remove the file: everything is restored."""
    host.store(FILE, None)
