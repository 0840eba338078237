"""What holds for every test."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give tables the width that the manual's have, whatever terminal the tests run in."""
    monkeypatch.setenv("COLUMNS", "120")
