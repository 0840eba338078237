"""The table of an engine's connections by their ids."""

from lab.c_programs import build, run

SOURCES = ["tests/cnet/engine/test_connection_table.c", "cnet/engine/connection_table.c"]


def test_the_table_against_a_list(tmp_path):
    run(build(tmp_path / "table", SOURCES))
