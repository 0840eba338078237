"""Pages by io_uring."""

from lab.c_programs import build, run

SOURCES = ["tests/cnet/store/test_ring_io.c", "cnet/store/ring_io.c"]


def test_the_ring_moves_pages_and_says_what_failed(tmp_path):
    run(build(tmp_path / "ring_io", SOURCES), str(tmp_path))
