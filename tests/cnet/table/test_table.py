"""The table in C under sanitizers, against an array of what each key must have."""

from __future__ import annotations

import pytest

from lab.c_programs import SANITIZED, build, run
from tests.support.levels import long_except

SOURCES = ["tests/cnet/table/test_table.c", *(f"cnet/table/table{part}.c" for part in (
    "", "_add", "_batch", "_cold", "_cold_pages", "_crew", "_index", "_look_up", "_loops",
    "_loops_avx2", "_loops_avx512", "_loops_portable", "_pending", "_pool", "_shard")),
    "cnet/store/page_file.c", "cnet/store/ring_io.c", "cnet/store/thread_io.c"]
THREADS = ["-O1", "-fsanitize=thread", "-Wno-tsan", "-pthread"]
QUICK, ALL = 100_000, 1_000_000


@pytest.mark.parametrize("operations", long_except([QUICK, ALL], QUICK))
@pytest.mark.parametrize("flags", [SANITIZED, THREADS], ids=["asan", "tsan"])
@pytest.mark.parametrize("threads", [1, 4])
def test_random_calls_against_an_array(tmp_path, flags, threads, operations):
    program = build(tmp_path / "table", SOURCES, [*flags, "-lm"])
    run(program, str(threads), str(operations), str(tmp_path))
