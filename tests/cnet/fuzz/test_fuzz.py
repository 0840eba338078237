"""The wire decoder and the session over any input: stored ones always, libFuzzer's where it is."""

import pytest

from lab.c_programs import run
from tests.cnet.fuzz.fuzz_programs import (
    TARGETS,
    build_fuzzer,
    build_replay,
    corpus,
    fuzz,
    has_libfuzzer,
)
from tests.support import ROOT
from tests.support.levels import long, long_except

RUNS = {"wire": 4_000_000, "session": 40_000}
"""About 8 s of a core each; `make fuzz` takes the time from SECONDS."""
needs_libfuzzer = pytest.mark.skipif(
    not has_libfuzzer(), reason="libFuzzer is needed: apt-get install clang libclang-rt-dev")


@pytest.mark.parametrize("target", long_except(TARGETS, "wire"))
def test_the_corpus_passes(target, tmp_path):
    files = sorted(str(path) for path in corpus(target).iterdir())
    assert files
    run(build_replay(tmp_path / "replay", target), *files)


@long
@needs_libfuzzer
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found(target, tmp_path):
    program = build_fuzzer(tmp_path / "fuzz", target)
    crash = fuzz(program, target, tmp_path, f"-runs={RUNS[target]}")
    assert crash is None, f"keep {crash} in {corpus(target)}\n{crash.read_bytes()!r}"


@long
@needs_libfuzzer
@pytest.mark.parametrize(("target", "source", "right", "wrong"), [
    ("wire", "wire/body.c", "if (length != ACK_BYTES + map_bytes)", "if (length < map_bytes)"),
    ("session", "session/inbox.c", "header->size > slot->capacity",
     "header->size > HARP_MESSAGE_MAX"),
])
def test_a_mistake_is_found(target, source, right, wrong, tmp_path):
    text = (ROOT / "cnet" / source).read_text()
    assert text.count(right) == 1
    changed = tmp_path / "changed.c"
    changed.write_text(text.replace(right, wrong))
    sources = [str(changed) if path == f"cnet/{source}" else path
               for path in TARGETS[target]]
    program = build_fuzzer(tmp_path / "fuzz", target, sources)
    assert fuzz(program, target, tmp_path, f"-runs={RUNS[target]}")


def test_the_corpus_has_every_type_and_refusals():
    from harp._cnet import ffi, lib

    header = ffi.new("struct harp_header *")
    types, errors = set(), set()
    for path in corpus("wire").iterdir():
        frame = path.read_bytes()
        error = lib.harp_header_decode(frame, len(frame), header)
        errors.add(error)
        if error == lib.HARP_WIRE_OK:
            types.add(header.type)
    assert types == set(range(1, 9))
    assert {lib.HARP_WIRE_OK, lib.HARP_WIRE_SHORT, lib.HARP_WIRE_VERSION} <= errors
