"""What tests of commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from harp.cli.main import main

HarpHere = Callable[..., tuple[int, str, str]]


@pytest.fixture
def harp_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> HarpHere:
    """Run ``harp`` in this process, which saves its start: words to status, stdout and stderr."""
    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["harp", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        said = capfd.readouterr()
        return ended.value.code, said.out, said.err
    return run
