"""The virtual network's C library, and the layers that keep it and the session apart from ports."""

from __future__ import annotations

from c_programs import build, run


def test_event_heap(tmp_path):
    run(build(tmp_path / "heap", ["tests/c/test_event_heap.c", "cnet/virtual/event_heap.c"]))
