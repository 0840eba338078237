"""SipHash and the keys derived by it."""

from c_programs import build, run


def test_siphash_and_keys(tmp_path):
    run(build(tmp_path / "siphash", ["tests/c/test_siphash.c", "cnet/siphash.c", "cnet/keys.c"]))
