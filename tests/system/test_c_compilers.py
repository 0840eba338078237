"""Every C file is without a warning, by gcc and by clang.

What a compiler finds only as it optimizes stops the build, where warnings are errors, too; and the
build is by gcc nearly everywhere.
"""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lab.c_programs import STRICT
from tests.support import ROOT
from tests.support.levels import long

if TYPE_CHECKING:
    from pathlib import Path

SOURCES = sorted([*ROOT.glob("cnet/**/*.c"), *ROOT.glob("sim/network/*/*.c")])


@long  # the build is by one of them, and its warnings are errors
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_warnings(compiler: str) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")

    def check(source: Path) -> str:
        command = [compiler, *STRICT, "-fsyntax-only", str(source)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr

    with ThreadPoolExecutor(2) as pool:
        assert not "".join(pool.map(check, SOURCES))
