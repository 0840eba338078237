"""The mem port: threads and processes, full rings, ends, and peers that break the rules."""

import pytest

from lab.c_programs import RACES, SANITIZED, build, library, run
from tests.support.levels import long


@pytest.mark.parametrize(("flags", "arguments"), [
    (SANITIZED, []), pytest.param(RACES, ["threads"], marks=long)], ids=["asan", "tsan"])
def test_datagrams_arrive_whole_and_ends_are_reported(tmp_path, flags, arguments):
    sources = ["tests/cnet/ports/test_port_mem.c", str(library(flags))]
    run(build(tmp_path / "port_mem", sources, flags), *arguments)


def test_a_peer_that_breaks_the_rules(tmp_path):
    sources = ["tests/cnet/ports/test_port_mem_rogue.c", str(library(SANITIZED))]
    run(build(tmp_path / "rogue", sources))
