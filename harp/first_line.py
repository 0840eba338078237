"""The first line of an error, for a message that is one sentence."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """Give the first line of an error's text, or its name where it has none."""
    return (str(error).strip() or repr(error)).splitlines()[0]
