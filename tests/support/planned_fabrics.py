"""Fabrics of every kind for the tests of planned paths, and flows for them."""

import numpy as np
from hypothesis import strategies as st

from harp.routing.templates import Endpoints, clos3, fat_tree, leaf_spine, rail, single_switch

FABRICS = {
    "leaf-spine": lambda wires: leaf_spine(Endpoints.uniform(32), leaves=4, spines=8, wires=wires),
    "odd": lambda wires: leaf_spine(Endpoints.uniform(35), leaves=5, spines=7, wires=wires),
    "parallel": lambda wires: leaf_spine(Endpoints.uniform(16), leaves=4, spines=2, links=2,
                                         wires=wires),
    "fat-tree": lambda wires: fat_tree(Endpoints.uniform(54), k=6, wires=wires),
    "clos3": lambda wires: clos3(Endpoints.uniform(64), pods=4, leaves=4, aggs=4, cores=16,
                                 wires=wires),
    "single": lambda wires: single_switch(Endpoints.uniform(8), wires=wires),
    "rail": lambda wires: rail(Endpoints.uniform(8, nics=4), hosts_per_leaf=4, spines=4,
                               wires=wires),
}


def derangement(seed, count):
    """A random permutation in which nobody sends to itself."""
    order = np.random.default_rng(seed).permutation(count)
    dst = np.empty(count, np.int64)
    dst[order] = np.roll(order, 1)
    return dst


def between_switches(fabric, links):
    inner = (fabric.link_src < len(fabric.switches)) & (fabric.link_dst < len(fabric.switches))
    return np.unique(links[(links >= 0) & inner[links]])


seeds = st.integers(0, 2**32 - 1)
