"""Memory that a GPU polls while it is filled: lines in order, their flags last."""

from __future__ import annotations

import pytest

from lab.c_programs import SANITIZED, build, run


@pytest.mark.parametrize("flags", [SANITIZED, ["-O2"]], ids=["sanitized", "optimised"])
def test_flags_come_after_their_lines(tmp_path, flags):
    run(build(tmp_path / "copy_lines", ["tests/cnet/base/test_copy_lines.c"], flags))
