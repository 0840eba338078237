"""The chunks of a message that have come."""

from lab.c_programs import build, library, run


def test_chunks_in_a_window_that_slides(tmp_path):
    run(build(tmp_path / "chunks", ["tests/cnet/base/test_chunks.c", str(library())]))
