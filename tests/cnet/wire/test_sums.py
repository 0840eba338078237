"""SipHash and the keys derived by it, CRCs, and the payloads that they are of."""

from lab.c_programs import build, library, run


def test_siphash_and_keys(tmp_path):
    run(build(tmp_path / "siphash", ["tests/cnet/base/test_siphash.c", str(library())]))


def test_crc32c(tmp_path):
    program = build(tmp_path / "crc32c", ["tests/cnet/wire/test_crc32c.c", str(library())])
    names = run(program).split()
    assert names[0] == "table"


def test_seal(tmp_path):
    run(build(tmp_path / "seal", [
        "tests/cnet/wire/test_seal.c", str(library())]))
