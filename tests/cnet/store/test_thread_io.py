"""Pages by threads."""

import pytest

from lab.c_programs import RACES, SANITIZED, build, run

SOURCES = ["tests/cnet/store/test_thread_io.c", "cnet/store/thread_io.c"]


@pytest.mark.parametrize("flags", [SANITIZED, RACES], ids=["asan", "tsan"])
def test_threads_move_pages_and_say_what_failed(tmp_path, flags):
    run(build(tmp_path / "thread_io", SOURCES, flags), str(tmp_path))
