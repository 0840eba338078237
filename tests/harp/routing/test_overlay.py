"""Encapsulation by a virtual network, and what it leaves for switches to hash."""

import numpy as np
import pytest

from harp.routing import overlay
from harp.routing.templates import Endpoints, leaf_spine
from tests.support.small_fabrics import paths


def test_an_overlay_without_entropy_puts_all_flows_of_a_host_pair_on_one_path():
    fabric = leaf_spine(Endpoints.uniform(8, nics=2), leaves=2, spines=4)
    flows = fabric.flows([0, 1] * 50, [14, 15] * 50, np.arange(49152, 49252))
    outer = overlay.encapsulate(fabric, flows, "outer")
    uplinks = {tuple(path[1:3]) for path in paths(fabric, outer)}
    assert len(uplinks) == 1
    inner = overlay.encapsulate(fabric, flows, "inner")
    assert {path[1] for path in paths(fabric, inner)} == set(fabric.next_hops.at(0, 14))
    assert inner.tuples.src_port.min() >= 49152
    assert (inner.tuples.dst_port == 4789).all()
    with pytest.raises(ValueError, match="'inner' or 'outer'"):
        overlay.encapsulate(fabric, flows, "none")
