"""Two levels of tests: ``make test`` leaves out what is marked long, ``make test-all`` does not.

Of the properties whose draws take seconds, ``make test`` draws a third.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

long = pytest.mark.long
_without_long = False


def set_level(config: pytest.Config) -> None:
    """Note, before tests are imported, whether the long ones are left out."""
    global _without_long  # noqa: PLW0603 - decorators read it as they are imported
    _without_long = config.getoption("markexpr") == "not long"


def draws(count: int) -> int:
    """Give the draws of a property of which ``make test-all`` makes ``count``."""
    return max(1, count // 3) if _without_long else count


def long_except(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Mark all parametrized cases but the quick ones as long."""
    cases = list(cases)
    assert all(case in cases for case in quick), f"of {quick} some are not among {cases}"
    return [case if case in quick
            else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=long)
            for case in cases]


def each_once(*parameters: Iterable[Any]) -> list[Any]:
    """Give the product of parameters; quick are as many cases as show each value of each once.

    For a matrix in which a value that breaks the law breaks it beside most values of the others.
    """
    columns = [list(values) for values in parameters]
    quick = {tuple(row % len(values) for values in columns)
             for row in range(max(map(len, columns)))}
    return [pytest.param(*(values[at] for values, at in zip(columns, places, strict=True)),
                         marks=() if places in quick else long)
            for places in itertools.product(*(range(len(values)) for values in columns))]
