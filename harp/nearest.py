"""The nearest known name or file, for messages about one that does not exist."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Give the known name most like ``name``; None if none is similar enough.

    ``cutoff`` is difflib's ratio, 0 to 1; with 0 some name is always given, if any is known.
    """
    return next(iter(get_close_matches(name, list(known), 1, cutoff)), None)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Give ``; did you mean 'x'?`` to end a message with, or nothing."""
    near = nearest_name(name, known, cutoff)
    return f"; did you mean {near!r}?" if near is not None else ""


def nearest_path(missing: Path) -> str | None:
    """Give the path that exists and has, for the first part that does not, the name most like it.

    The rest of the path is taken over.
    """
    folder = next((parent for parent in missing.parents if parent.is_dir()), None)
    if folder is None:
        return None
    wrong, *rest = missing.relative_to(folder).parts
    try:
        names = [path.name for path in folder.iterdir() if path.joinpath(*rest).exists()]
    except OSError:
        return None
    name = nearest_name(wrong, names)
    return str(folder.joinpath(name, *rest)) if name is not None else None
