"""SipHash."""

from lab.c_programs import build, library, run


def test_siphash(tmp_path):
    run(build(tmp_path / "siphash", ["tests/cnet/base/test_siphash.c", str(library())]))
