"""The virtual network's C library."""

from __future__ import annotations

from c_programs import build, run
from dst_programs import cnet, driver_sources


def test_event_heap(tmp_path):
    run(build(tmp_path / "heap", ["tests/c/test_event_heap.c", "cnet/virtual/event_heap.c"]))


def test_event_wheel(tmp_path):
    run(build(tmp_path / "wheel", ["tests/c/test_event_wheel.c", "cnet/virtual/event_wheel.c",
                                   "cnet/virtual/event_heap.c"]))


def test_links_and_keys(tmp_path):
    run(build(tmp_path / "link", ["tests/c/test_virtual_link.c", *cnet("virtual/*.c"),
                                  *driver_sources()]))
