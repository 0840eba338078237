"""The ring between two threads: under ThreadSanitizer, and under all interleavings of a small case.

Both tests must also see through: each deliberate mistake in the header is one that they catch.
"""

import pytest

from lab.c_programs import SANITIZED, build, run
from tests.support import ROOT
from tests.support.levels import long, long_except

HEADER = ROOT / "cnet" / "base" / "spsc.h"
THREADS = ["-O1", "-fsanitize=thread", "-D_GNU_SOURCE"]
COROUTINES = ["-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-D_GNU_SOURCE"]


@pytest.mark.parametrize("items", long_except([400_000, 4_000_000], 400_000))
def test_two_threads(tmp_path, items):
    for name, flags in [("tsan", THREADS), ("asan", [*SANITIZED, "-D_GNU_SOURCE"])]:
        run(build(tmp_path / name, ["tests/cnet/base/test_spsc_threads.c"], flags), str(items))


@long
def test_all_interleavings(tmp_path):
    schedules = run(build(tmp_path / "all", ["tests/cnet/base/test_spsc_interleavings.c"],
                          COROUTINES))
    assert int(schedules) > 100_000


def mutant(tmp_path, old, new):
    """Flags that put a changed copy of the header before the real one."""
    text = HEADER.read_text()
    assert old in text
    folder = tmp_path / HEADER.parent.name
    folder.mkdir()
    (folder / HEADER.name).write_text(text.replace(old, new))
    return ["-iquote", str(tmp_path)]


@pytest.mark.parametrize("counter", ["put", "taken"])
@pytest.mark.parametrize("order", ["acquire", "release"])
def test_threads_see_a_barrier_that_is_missing(tmp_path, counter, order):
    access = {"release": f"atomic_store_explicit(&ring->{counter}, {counter} + now, memory_order_",
              "acquire": f"atomic_load_explicit(&ring->{counter}, memory_order_"}[order]
    flags = mutant(tmp_path, f"{access}{order})", f"{access}relaxed)")
    program = build(tmp_path / "mutant", ["tests/cnet/base/test_spsc_threads.c"],
                    [*THREADS, *flags])
    with pytest.raises(AssertionError, match="data race"):
        run(program, "100000")


@pytest.mark.parametrize(("old", "new"), [
    ("uint64_t room = ring->capacity - (put", "uint64_t room = ring->capacity + 1 - (put"),
    ("uint64_t ready = ring->put_seen - taken;", "uint64_t ready = ring->put_seen + 1 - taken;"),
    ("    harp_spsc_copy_in(ring, put, items, now);\n    HARP_SPSC_STEP();\n",
     "    atomic_store_explicit(&ring->put, put + now, memory_order_release);\n"
     "    harp_spsc_copy_in(ring, put, items, now);\n"),
    ("    harp_spsc_copy_out(ring, taken, items, now);\n    HARP_SPSC_STEP();\n",
     "    atomic_store_explicit(&ring->taken, taken + now, memory_order_release);\n"
     "    harp_spsc_copy_out(ring, taken, items, now);\n"),
    ("put + now, memory_order_release", "put + now + 1, memory_order_release"),
    ("taken + now, memory_order_release", "taken, memory_order_release"),
    ("memcpy(ring->slots, items + first_bytes", "memcpy(ring->slots, items"),
], ids=["room", "ready", "count-before-copy-in", "count-before-copy-out", "one-more", "not-counted",
        "wrap"])
def test_interleavings_see_a_mistake(tmp_path, old, new):
    flags = mutant(tmp_path, old, new)
    program = build(tmp_path / "mutant", ["tests/cnet/base/test_spsc_interleavings.c"],
                    [*COROUTINES, *flags])
    with pytest.raises(AssertionError, match="exit code"):
        run(program)
