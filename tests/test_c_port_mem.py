"""The mem port: threads and processes, full rings, ends, and peers that break the rules."""

import pytest
from c_programs import SANITIZED, build, run

SOURCES = ["tests/c/test_port_mem.c", "cnet/port_mem.c", "cnet/port_mem_link.c", "cnet/address.c"]


@pytest.mark.parametrize(("flags", "arguments"),
                         [(SANITIZED, []), (["-O1", "-fsanitize=thread"], ["threads"])],
                         ids=["asan", "tsan"])
def test_port_mem(tmp_path, flags, arguments):
    run(build(tmp_path / "port_mem", SOURCES, flags), *arguments)
