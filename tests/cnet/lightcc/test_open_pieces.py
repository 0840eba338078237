"""The order among a mover's open pieces."""

from lab.c_programs import build, library, run


def test_pieces_wait_for_earlier_ones_of_their_bytes(tmp_path):
    run(build(tmp_path / "open", ["tests/cnet/lightcc/test_open_pieces.c", str(library())]))
