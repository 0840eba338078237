"""Copies from which small messages leave."""

from lab.c_programs import build, library, run


def test_small_messages_leave_from_copies(tmp_path):
    run(build(tmp_path / "copies", ["tests/cnet/lightcc/test_copies.c", str(library())]))
