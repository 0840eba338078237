"""The table of congestion control's controllers, and those with a constant window."""

from lab.c_programs import build, library, run


def test_controllers_by_name_and_windows_that_no_news_changes(tmp_path):
    run(build(tmp_path / "cc", ["tests/cnet/cc/test_cc.c", str(library())]))
