"""Variants of a file that differ in one value."""

from __future__ import annotations

from sim.schema import load
from sim.schema.file_variants import Variants
from tests.support.cluster_files import topology, write


def test_other_values_are_far_off_and_valid(tmp_path):
    variants = Variants(load(write(tmp_path, topology())).plain)
    rates = [value for value, _ in variants.others(("hosts", 0, "nics", 0, "rate"))]
    assert {"100000000bps", "1e+14bps"} <= set(rates)
    stacks = [value for value, _ in variants.others(("scenarios", 0, "stack"))]
    assert "rdma" in stacks
    assert "ideal" not in stacks
    assert not list(variants.others(("name",)))
    overlaps = [value for value, _ in variants.others(("frameworks", "free", "overlap"))]
    assert overlaps[0] == 0.001
