"""Keys of offload."""

from __future__ import annotations

from harp.angelptm import pages
from sim.schema.offload_keys import PAGE_BYTES


def test_pages_are_the_runtimes():
    assert PAGE_BYTES == pages.PAGE_BYTES
