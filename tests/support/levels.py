"""Two levels of tests: ``make test`` leaves out what is marked long, ``make test-all`` does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

long = pytest.mark.long


def long_except(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Mark all parametrized cases but the quick ones as long."""
    cases = list(cases)
    assert all(case in cases for case in quick), f"of {quick} some are not among {cases}"
    return [case if case in quick
            else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=long)
            for case in cases]
