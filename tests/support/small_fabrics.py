"""Small fabrics, drawn and by hand, and what networkx knows of their routes."""

from itertools import pairwise

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from harp.routing.templates import (
    Cable,
    Endpoints,
    SwitchHash,
    Wires,
    clos3,
    dual_tor,
    explicit,
    fat_tree,
    leaf_spine,
    rail,
    single_switch,
)

SMALL = {
    "single-switch": lambda: single_switch(Endpoints.uniform(4, ports=2)),
    "leaf-spine": lambda: leaf_spine(Endpoints.uniform(8), leaves=4, spines=3, links=2),
    "rail": lambda: rail(Endpoints.uniform(6, nics=2), hosts_per_leaf=2, spines=2),
    "clos3": lambda: clos3(Endpoints.uniform(12), pods=3, leaves=2, aggs=2, cores=4),
    "fat-tree": lambda: fat_tree(Endpoints.uniform(16), k=4),
    "dual-tor": lambda: dual_tor(Endpoints.uniform(8, ports=2), pairs=2, spines=3),
}


def paths(fabric, flows, port=None):
    ptr, links = fabric.route(flows, port)
    return [links[a:b].tolist() for a, b in pairwise(ptr)]


def switch_graph(fabric, dst):
    """Live links among switches and to the endpoint node ``dst``: no other NIC forwards."""
    graph = nx.DiGraph()
    switches = len(fabric.switches)
    for link in np.flatnonzero(fabric.link_up):
        ends = int(fabric.link_src[link]), int(fabric.link_dst[link])
        if all(node < switches or node == dst for node in ends):
            graph.add_edge(*ends)
    return graph


@st.composite
def random_fabrics(draw):
    """A connected explicit fabric of 2 to 7 switches, 2 to 5 NICs with 1 or 2 ports each."""
    switches = draw(st.integers(2, 7))
    names = [f"s{i}" for i in range(switches)]
    tree = [(draw(st.integers(0, i - 1)), i) for i in range(1, switches)]
    some = st.tuples(st.integers(0, switches - 1), st.integers(0, switches - 1))
    extra = [pair for pair in draw(st.lists(some, max_size=8)) if pair[0] != pair[1]]
    cables = [
        Cable(names[a], names[b], 1e9, 1e-6, draw(st.integers(1, 2))) for a, b in tree + extra
    ]
    endpoints = Endpoints.uniform(draw(st.integers(2, 5)), ports=draw(st.integers(1, 2)))
    host_links = [
        (nic, port, draw(st.sampled_from(names)))
        for nic, ports in zip(endpoints.names, endpoints.ports, strict=True)
        for port in range(ports)
    ]
    wires = Wires(switch_hash=SwitchHash(draw(st.sampled_from(["crc16", "crc32", "xor", "linux"]))))
    return explicit(endpoints, devices=names, cables=cables, host_links=host_links, wires=wires)
