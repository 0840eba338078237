"""SipHash and the keys derived by it."""

from c_programs import build, run


def test_siphash_and_keys(tmp_path):
    run(build(tmp_path / "siphash", ["tests/c/test_siphash.c", "cnet/siphash.c", "cnet/keys.c"]))


def test_crc32c(tmp_path):
    names = run(build(tmp_path / "crc32c", ["tests/c/test_crc32c.c", "cnet/crc32c.c",
                                            "cnet/crc32c_x86.c", "cnet/crc32c_arm.c"])).split()
    assert names[0] == "table"


def test_seal(tmp_path):
    run(build(tmp_path / "seal", [
        "tests/c/test_seal.c", "cnet/seal.c", "cnet/wire.c", "cnet/siphash.c", "cnet/crc32c.c",
        "cnet/crc32c_x86.c", "cnet/crc32c_arm.c"]))
