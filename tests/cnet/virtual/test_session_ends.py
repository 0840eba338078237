"""Both ends of a session in one process."""

from lab.c_programs import build, library, run


def test_two_ends_are_made_and_know_each_other(tmp_path):
    run(build(tmp_path / "ends", ["tests/cnet/virtual/test_session_ends.c", str(library())]))
