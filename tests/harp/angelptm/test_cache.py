"""Memory of the tiers: what the host or its control group does not have is refused beforehand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harp._cnet import ffi
from harp.angelptm.cache import Cache, StoreError
from harp.angelptm.page_plan import DISK, HOST, Capacities
from harp.angelptm.pages import Layout
from lab.control_groups import control_group
from tests.support import PATIENCE_S, ROOT

OPEN = """
from harp._cnet import ffi, lib
why = ffi.new("char[]", lib.HARP_STORE_WHY_BYTES)
small, large = (lib.harp_page_pool_open(1 << 20, pages, why) for pages in (64, 512))
print(small != ffi.NULL, large != ffi.NULL, ffi.string(why).decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root")
def test_a_control_groups_limit_is_an_error_and_no_killed_process(tmp_path):
    most = str(256 << 20)
    with control_group("memory", {"memory.max": most}, {"memory.limit_in_bytes": most},
                       tmp_path) as inside:
        done = subprocess.run([*inside, sys.executable, "-c", OPEN], cwd=ROOT, text=True,
                              capture_output=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    said = done.stdout.strip()
    assert said.startswith("True False 512 pages of 1048576 bytes cannot be had: the control group")
    assert 0 < int(said.split()[-3]) < 192


def contents(cache):
    """Give the bytes of all pages in memory."""
    size = cache.layout.page_bytes
    return {page: bytes(ffi.buffer(ffi.cast("char *", cache.address(page)), size))
            for page, (tier, _) in enumerate(cache.where) if tier < DISK}


@pytest.mark.parametrize("disk", [0, 24], ids=["host", "disk"])
def test_measured_rates_leave_all_pages_where_they_were(tmp_path, disk):
    layout = Layout((20000,), 4, 8192)
    cache = Cache(layout, Capacities(6, 20 if disk else 50, disk), str(tmp_path))
    try:
        for page, (tier, _) in enumerate(cache.where):
            if tier < DISK:
                fill = ffi.buffer(ffi.cast("char *", cache.address(page)), layout.page_bytes)
                fill[:] = bytes([page + 1]) * layout.page_bytes
        before, places = contents(cache), list(cache.where)
        rates = cache.measure()
        assert rates.copy not in {0, 1000.0}
        assert (rates.disk == 250.0) == (not disk)
        assert cache.where == places
        assert contents(cache) == before
        assert {tier for tier, _ in places} >= {HOST}
    finally:
        cache.close()


def mapped_bytes():
    """Give the bytes of addresses that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def test_a_cache_that_cannot_be_made_gives_its_addresses_back(tmp_path):
    layout = Layout((2**28,), 4, 2**20)
    before = mapped_bytes()
    with pytest.raises(StoreError, match="nowhere"):
        Cache(layout, Capacities(8, 8, 2 * layout.pages), str(tmp_path / "nowhere"))
    assert mapped_bytes() - before < layout.shown * 2**20
