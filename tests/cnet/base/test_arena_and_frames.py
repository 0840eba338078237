"""An engine's memory and its frames."""

import re

from tests.support import ROOT
from tests.support.c_programs import build, library, run


def test_arena(tmp_path):
    program = build(tmp_path / "arena", ["tests/cnet/base/test_arena.c", str(library())])
    lines = run(program).splitlines()
    assert all(line.startswith("memory: ") for line in lines)


def test_frames_and_the_table_in_their_manual(tmp_path):
    printed = run(build(tmp_path / "frames", ["tests/cnet/base/test_frames.c", str(library())]))
    in_code = {tuple(line.split()) for line in printed.splitlines()}
    manual = (ROOT / "cnet" / "base" / "frames.h").read_text()
    rows = re.findall(r"^ \*     ([A-Z]+)  .*?((?: [A-Z]{4,})+)$", manual, re.MULTILINE)
    assert len(rows) == 9
    assert {(state, to) for state, behind in rows for to in behind.split()} == in_code
