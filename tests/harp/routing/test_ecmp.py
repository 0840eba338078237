"""Equal-cost next hops: networkx as oracle."""

import networkx as nx

from tests.support.small_fabrics import switch_graph


def test_equal_cost_groups_are_all_of_networkx_next_hops(small):
    switches = len(small.switches)
    for endpoint in range(len(small.endpoints)):
        graph = switch_graph(small, switches + endpoint)
        for switch in range(switches):
            group = small.next_hops.at(switch, endpoint)
            ways = nx.all_shortest_paths(graph, switch, switches + endpoint)
            assert set(small.link_dst[group]) == {path[1] for path in ways}
            assert sorted(group) == group.tolist()
