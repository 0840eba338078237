"""What tests of commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from harp.cli.main import main

HarpHere = Callable[..., CompletedProcess[str]]


@pytest.fixture
def harp_here(capfd: pytest.CaptureFixture[str]) -> HarpHere:
    """Run ``harp`` in this process, which saves its start, with no settings but those given."""
    def run(*words: str, **settings: str) -> CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            for name in os.environ:
                if name.startswith(("HARP_", "LIGHT_", "NCCL_")):
                    patch.delenv(name)
            for name, value in settings.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["harp", *words])
            with pytest.raises(SystemExit) as ended:
                main()
        assert isinstance(ended.value.code, int)
        said = capfd.readouterr()
        return CompletedProcess(words, ended.value.code, said.out, said.err)
    return run


@pytest.fixture
def conf_file(tmp_path):
    def write(text):
        file = tmp_path / "harp.conf"
        file.write_text(text)
        return str(file)
    return write
