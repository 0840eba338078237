"""The C tests of the session's parts."""

from __future__ import annotations

from c_programs import build, run
from dst_programs import session_sources


def test_parts(tmp_path):
    run(build(tmp_path / "parts", ["tests/c/test_session_parts.c", *session_sources()]))
