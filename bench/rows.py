"""Rows of a table: what a subject measures, against what, and the target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Result = dict[str, Any]
"""A measured row: ``id`` and ``ok`` at least, and JSON throughout."""


class Mistake(click.ClickException):
    """A wrong option, or a measurement that cannot be made: one sentence and status 2."""

    exit_code = 2


@dataclass(frozen=True)
class Row:
    """A row of a subject's table; the subject knows the arguments of its functions."""

    id: str
    what: str
    function: Callable[..., Any]
    unit: str = field(default="", kw_only=True)
    reference: str = field(default="", kw_only=True)
    target: float | str | None = field(default=None, kw_only=True)
    """Bound of the value, or of its ratio to the reference; text where it is several."""
    lower: bool = field(default=False, kw_only=True)
    """Whether lower is better: the target is the most and not the least."""

    @property
    def goal(self) -> str:
        """The target as text."""
        return goal(self.target, lower=self.lower)


def goal(target: float | str | None, *, lower: bool = False, within: float | None = None) -> str:
    """Write a target; empty if there is none."""
    if within is not None:
        return f"1 ± {within:g}"
    if isinstance(target, str):
        return target
    return f"{'≤' if lower else '≥'} {target:g}" if target else ""


AnyRow = TypeVar("AnyRow", bound=Row)


def by_id(rows: Iterable[AnyRow]) -> dict[str, AnyRow]:
    """Index rows; two of one id are a mistake."""
    made: dict[str, AnyRow] = {}
    for row in rows:
        assert made.setdefault(row.id, row) is row, row.id
    return made


def select(known: Mapping[str, Any], only: str | None) -> list[str]:
    """Ids that ``--only`` names, in its order: ids, or texts that ids contain, between commas."""
    if not only:
        return list(known)
    found: dict[str, None] = {}
    # Some ids have commas.
    for text in [only] if any(only in name for name in known) else only.split(","):
        named = [text] if text in known else [name for name in known if text in name]
        if not named:
            raise Mistake(f"there is no row {text!r}; there are {', '.join(known)}")
        found.update(dict.fromkeys(named))
    return list(found)
