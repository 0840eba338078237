"""The number of pages of each tier."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harp.angelptm.config import Config
from harp.angelptm.page_plan import Capacities, CapacityError, first_placement
from harp.angelptm.pages import Layout
from harp.angelptm.tiers import capacities, stays

PAGE = 8192
LAYOUT = Layout((5000, 3000), 4, PAGE)
"""Four pages of each kind, and four kinds."""


def test_without_caps_all_pages_are_on_the_device():
    assert capacities(LAYOUT, Config()) == Capacities(LAYOUT.pages, 0)


def test_caps_are_in_whole_pages():
    config = Config(device_bytes=5 * PAGE - 1, host_bytes=3 * PAGE + 7, disk_path="/disk",
                    disk_bytes=9 * PAGE)
    assert capacities(LAYOUT, config) == Capacities(4, 3, 9)


@given(st.integers(0, 40), st.sampled_from([2, 4]))
def test_a_host_without_a_cap_holds_all_that_the_device_does_not(device, width):
    layout = Layout((5000, 3000), width, PAGE)
    found = capacities(layout, Config(device_bytes=device * PAGE))
    assert len(first_placement(layout.pages, found)) == layout.pages


@pytest.mark.parametrize("caps", [{}, {"device_bytes": 16 * PAGE, "host_bytes": 0}])
def test_a_disk_takes_nothing_where_the_device_holds_all(caps):
    found = capacities(LAYOUT, Config(disk_path="/disk", **caps))
    assert found == Capacities(LAYOUT.pages, 0, 0)


@given(st.integers(0, 40), st.integers(0, 40))
def test_a_disk_is_used_only_where_the_host_is_too_small(device, host):
    """A page of the host less than there is: one more than without a disk moves others."""
    config = Config(device_bytes=device * PAGE, host_bytes=host * PAGE)
    alone = capacities(LAYOUT, config)
    assert alone.disk == 0
    try:
        fits = bool(first_placement(LAYOUT.pages, replace(alone, host=alone.host - 1)))
    except CapacityError:
        fits = False
    assert (capacities(LAYOUT, replace(config, disk_path="/disk")).disk == 0) == fits


@pytest.mark.parametrize(("ranks", "stage", "accumulation", "kinds"), [
    (1, 1, 2, 0), (2, 3, 2, 0), (2, 2, 2, 1), (2, 1, 1, 1), (2, 1, 2, 2), (2, 0, 4, 2)])
def test_pages_of_the_window_stay_as_the_stage_of_zero_says(ranks, stage, accumulation, kinds):
    layout = Layout((5000, 3000), 4, PAGE, ranks)
    assert stays(layout, stage, accumulation) == kinds * layout.shown
