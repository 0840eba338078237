"""The heap of events in virtual time."""

from __future__ import annotations

from lab.c_programs import build, run


def test_event_heap(tmp_path):
    run(build(tmp_path / "heap", ["tests/cnet/virtual/test_event_heap.c",
                                  "cnet/virtual/event_heap.c"]))
