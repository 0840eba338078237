"""Datagrams that a UDP socket joins, made arrivals again."""

from lab.c_programs import build, library, run


def test_joined_datagrams_arrive_one_by_one(tmp_path):
    run(build(tmp_path / "gro", ["tests/cnet/ports/test_gro_buffers.c", str(library())]))
