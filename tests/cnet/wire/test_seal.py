"""Tags and CRCs of frames, and the payloads that they are of."""

from lab.c_programs import build, library, run


def test_seal(tmp_path):
    run(build(tmp_path / "seal", [
        "tests/cnet/wire/test_seal.c", str(library())]))
