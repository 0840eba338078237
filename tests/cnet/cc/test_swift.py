"""Swift, the delay-based controller, from ACKs made by hand."""

from lab.c_programs import build, library, run


def test_swift_recognises_other_flows(tmp_path):
    run(build(tmp_path / "swift", ["tests/cnet/cc/test_swift.c", str(library())]))
