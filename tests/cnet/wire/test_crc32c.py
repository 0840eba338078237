"""CRCs by each routine that the machine has."""

from lab.c_programs import build, library, run


def test_crc32c(tmp_path):
    program = build(tmp_path / "crc32c", ["tests/cnet/wire/test_crc32c.c", str(library())])
    names = run(program).split()
    assert names[0] == "table"
