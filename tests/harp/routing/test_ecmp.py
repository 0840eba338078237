"""Equal-cost next hops: networkx as oracle."""

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing.ecmp import nth_true
from harp.routing.templates import Endpoints, leaf_spine
from tests.support.small_fabrics import random_fabrics, switch_graph


def test_equal_cost_groups_are_all_of_networkx_next_hops(small):
    switches = len(small.switches)
    for endpoint in range(len(small.endpoints)):
        graph = switch_graph(small, switches + endpoint)
        for switch in range(switches):
            group = small.next_hops.at(switch, endpoint)
            ways = nx.all_shortest_paths(graph, switch, switches + endpoint)
            assert set(small.link_dst[group]) == {path[1] for path in ways}
            assert sorted(group) == group.tolist()


def every_pair(fabric):
    return [end.ravel() for end in np.indices((len(fabric.switches), len(fabric.endpoints)))]


@settings(max_examples=30, deadline=None)
@given(random_fabrics(), st.data())
def test_next_hops_of_many_pairs_are_those_of_each(fabric, data):
    down = data.draw(st.lists(st.integers(0, len(fabric.link_src) - 1), max_size=4))
    table = (fabric.without(down) if down else fabric).next_hops
    switch, endpoint = every_pair(fabric)
    entry, links, ways = table.expand(switch, endpoint)
    for number, pair in enumerate(zip(switch.tolist(), endpoint.tolist(), strict=True)):
        assert sorted(links[entry == number].tolist()) == table.at(*pair).tolist()
        assert ways[number] == len(table.at(*pair))


@settings(max_examples=30, deadline=None)
@given(random_fabrics(), st.integers(0, 9))
def test_a_flow_takes_the_next_hop_that_is_chosen_for_it(fabric, number):
    table, (switch, endpoint) = fabric.next_hops, every_pair(fabric)
    picked = table.pick(switch, endpoint, lambda ways: (number % ways).astype(np.uint32))
    for link, *pair in zip(picked.tolist(), switch.tolist(), endpoint.tolist(), strict=True):
        last = table.down[pair[1]][table.down_src[pair[1]] == pair[0]]
        ways = last if len(last) else table.at(*pair)
        assert link == ways[number % len(ways)]


def test_a_switch_from_which_nothing_leads_on_picks_none():
    whole = leaf_spine(Endpoints.uniform(4), leaves=2, spines=2)
    fabric = whole.without(range(len(whole.link_src)))
    switch, endpoint = every_pair(fabric)
    assert (fabric.next_hops.pick(switch, endpoint, np.zeros_like) == -1).all()
    assert len(fabric.next_hops.at(0, 0)) == 0
    assert fabric.next_hops.diameter == 0


@settings(max_examples=40)
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5),
       st.integers(0, 3))
def test_the_nth_mark_of_a_row_is_found(mask, nth):
    found = nth_true(np.array(mask), [nth] * len(mask))
    for row, column in zip(mask, found, strict=True):
        marked = np.flatnonzero(row)
        assert column == (marked[nth] if nth < len(marked) else 0)
