"""The nearest known name, for messages about a name that does not exist."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Give the known name most like ``name``; None if none is similar enough.

    ``cutoff`` is difflib's ratio, 0 to 1; with 0 some name is always given, if any is known.
    """
    return next(iter(get_close_matches(name, list(known), 1, cutoff)), None)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Give ``; did you mean 'x'?`` to end a message with, or nothing."""
    near = nearest_name(name, known, cutoff)
    return f"; did you mean {near!r}?" if near is not None else ""
