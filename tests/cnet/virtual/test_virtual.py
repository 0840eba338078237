"""The virtual network's C library."""

from __future__ import annotations

from tests.dst.dst_programs import cnet, driver_sources
from tests.support.c_programs import build, run


def test_event_heap(tmp_path):
    run(build(tmp_path / "heap", ["tests/cnet/virtual/test_event_heap.c",
                                  "cnet/virtual/event_heap.c"]))


def test_event_wheel(tmp_path):
    run(build(tmp_path / "wheel", ["tests/cnet/virtual/test_event_wheel.c",
                                   "cnet/virtual/event_wheel.c",
                                   "cnet/virtual/event_heap.c"]))


def test_links_and_keys(tmp_path):
    run(build(tmp_path / "link", ["tests/cnet/virtual/test_link.c", *cnet("virtual/*.c"),
                                  *driver_sources()]))
