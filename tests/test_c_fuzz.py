"""The wire decoder over stored frames and random changes of them.

``clang -fsanitize=fuzzer,address,undefined -I cnet tests/c/fuzz_wire.c cnet/wire.c cnet/body.c``
makes a libFuzzer program of the same target.
"""

import os
import subprocess

from c_programs import ROOT, SANITIZED, build

from harp._cnet import ffi, lib

CORPUS = ROOT / "tests" / "c" / "corpus" / "wire"
DRIVER = "tests/c/fuzz_main.c"
ABORT = {"ASAN_OPTIONS": "abort_on_error=1", "UBSAN_OPTIONS": "abort_on_error=1"}


def fuzz(program, directory, mutations):
    """The input that crashed, or None."""
    command = [str(program), str(mutations), *sorted(str(path) for path in CORPUS.iterdir())]
    done = subprocess.run(command, cwd=directory, capture_output=True, check=False, timeout=60,
                          env=os.environ | ABORT)
    return (directory / "crash-input").read_bytes() if done.returncode else None


def test_wire_decoder_survives_anything(tmp_path):
    program = build(tmp_path / "fuzz", ["tests/c/fuzz_wire.c", DRIVER, "cnet/wire.c",
                                        "cnet/body.c"], SANITIZED)
    assert fuzz(program, tmp_path, 300_000) is None


def test_a_decoder_with_a_mistake_does_not_survive(tmp_path):
    text = (ROOT / "cnet" / "body.c").read_text()
    right = "if (length != ACK_BYTES + map_bytes)"
    assert right in text
    (tmp_path / "body.c").write_text(text.replace(right, "if (length < map_bytes)"))
    program = build(tmp_path / "fuzz", ["tests/c/fuzz_wire.c", DRIVER, "cnet/wire.c",
                                        str(tmp_path / "body.c")], SANITIZED)
    assert fuzz(program, tmp_path, 300_000) is not None


def test_the_corpus_has_every_type_and_refusals():
    header = ffi.new("struct harp_header *")
    types, errors = set(), set()
    for path in CORPUS.iterdir():
        frame = path.read_bytes()
        error = lib.harp_header_decode(frame, len(frame), header)
        errors.add(error)
        if error == lib.HARP_WIRE_OK:
            types.add(header.type)
    assert types == set(range(1, 9))
    assert {lib.HARP_WIRE_OK, lib.HARP_WIRE_SHORT, lib.HARP_WIRE_VERSION} <= errors
