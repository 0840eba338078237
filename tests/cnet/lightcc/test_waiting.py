"""A mover's wait: how long it looks before it sleeps."""

from lab.c_programs import build, library, run


def test_the_time_of_looking_is_learnt(tmp_path):
    run(build(tmp_path / "waiting", ["tests/cnet/lightcc/test_waiting.c", str(library())]))
