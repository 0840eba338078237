"""The table in C under sanitizers, against an array of what each key must have."""

from __future__ import annotations

import pytest

from lab.c_programs import RACES, SANITIZED, build, library, run
from tests.support.levels import long_except

QUICK, ALL = 100_000, 1_000_000


@pytest.mark.parametrize("operations", long_except([QUICK, ALL], QUICK))
@pytest.mark.parametrize("flags", [SANITIZED, RACES], ids=["asan", "tsan"])
@pytest.mark.parametrize("threads", long_except([1, 4], 4))
def test_random_calls_against_an_array(tmp_path, flags, threads, operations):
    program = build(tmp_path / "table", ["tests/cnet/table/test_table.c", str(library(flags))],
                    [*flags, "-Wl,--no-as-needed", "-lm"])
    run(program, str(threads), str(operations), str(tmp_path))
