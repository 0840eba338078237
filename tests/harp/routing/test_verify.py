"""Verification of planned paths by the routers that answer."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harp.routing.deployment import Flow
from harp.routing.verify import find_mismatch


def flow(port, *switches):
    """From one end to another by these switches."""
    nodes = ["h-0/eth0", *switches, "h-1/eth0"]
    return Flow(0, 1, f"10.0.0.1:{port}", "10.0.0.2:61000",
                tuple(f"{a}->{b}" for a, b in pairwise(nodes)))


@pytest.mark.parametrize(("second", "sentence"), [
    (("10.1.0.1", "10.1.1.2"), None),
    (("10.1.0.1", None), None),
    (("10.1.0.9", "10.1.1.2"), None),  # a router of two addresses
    ((), None),
    (("10.1.0.1", "10.1.1.1"), "10.1.1.1 answers packets from 10.0.0.1:1, where the plan has "
                               "spine0, and packets from 10.0.0.1:2, where it has spine1"),
    (("10.1.0.1", "10.1.1.2", "10.1.2.1", "10.1.3.1"), "from 10.0.0.1:2 to 10.0.0.2:61000 there "
     "are at least 4 routers, but the plan has 3"),
])
def test_one_address_is_not_two_switches(second, sentence):
    flows = [flow(1, "leaf0", "spine0", "leaf1"), flow(2, "leaf0", "spine1#2", "leaf1")]
    routers = {("10.0.0.1:1", "10.0.0.2:61000"): ("10.1.0.1", "10.1.1.1"),
               ("10.0.0.1:2", "10.0.0.2:61000"): second}
    assert find_mismatch(flows, routers) == sentence
