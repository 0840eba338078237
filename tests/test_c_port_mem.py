"""The mem port: threads and processes, full rings, ends, and peers that break the rules."""

import pytest
from c_programs import SANITIZED, build, library, run

THREADS = ["-O1", "-fsanitize=thread", "-Wno-tsan"]


@pytest.mark.parametrize(("flags", "arguments"), [(SANITIZED, []), (THREADS, ["threads"])],
                         ids=["asan", "tsan"])
def test_port_mem(tmp_path, flags, arguments):
    sources = ["tests/c/test_port_mem.c", str(library(flags))]
    run(build(tmp_path / "port_mem", sources, flags), *arguments)
