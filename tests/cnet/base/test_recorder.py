"""The flight recorder by itself; that others read it while an engine runs is in test_stats."""

from lab.c_programs import build, library, run


def test_recorded_events_are_read_and_said(tmp_path):
    run(build(tmp_path / "recorder", ["tests/cnet/base/test_recorder.c", str(library())]))
