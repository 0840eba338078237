"""Resources that messages use on their path, and the resulting rates, by hand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sim.answer.collective_bench import measure
from sim.answer.scenario import Settings
from sim.network.flow.fluid import Fluid
from sim.network.transport import WINDOW_BYTES, Style, Transport
from sim.schema import TopologyError
from sim.schema.parameters import load_stack
from tests.support.cluster_files import ALPHA_S, IDEAL, cluster, topology

LEAF_SPINE = {"template": "leaf-spine", "leaves": 2, "spines": 4}
B = 100e9 / 8


def transport(folder, **given):
    made = cluster(folder, **given)
    scenario = made.topology.scenarios[0]
    stack = load_stack(scenario.stack, made.topology.stacks)
    return Transport(made, stack, Style.of(scenario, made.topology))


def rates(made, src, dst, channel=0):
    """Payload bytes/s of messages that run at the same time."""
    paths = made.paths(src, dst, channel)
    edges = np.arange(paths.edges)
    net = Fluid(made.cluster.capacities(made.stack))
    net.add_routes(*paths.footprints(edges, np.ones(paths.edges)))
    return net.state(net.start(edges, np.ones(paths.edges), ceilings=paths.ceiling))[0]


def links(made, src, dst):
    """Names of the links between switches that a message crosses."""
    paths = made.paths([src], [dst])
    block, fabric = made.cluster.blocks["link"], made.cluster.fabric
    crossed = paths.resource[paths.resource < block.first + len(block.capacity)]
    return {fabric.link_name(int(link)) for link in crossed
            if "/" not in fabric.link_name(int(link))}


def shared(folder, vpc, *, stack=None, **given):
    """Two hosts of two GPUs in a VPC."""
    return transport(folder, gpus=2, vpc={"vnics": 2} | vpc,
                     stacks={"ideal": IDEAL | (stack or {})}, **given)


def test_a_message_alone_takes_its_slowest_resource(tmp_path):
    assert rates(transport(tmp_path), [0], [1]) == pytest.approx([B])
    slow = transport(tmp_path, host={"pcie": {"rate": "3GB/s", "latency": "0s"}})
    assert rates(slow, [0], [1]) == pytest.approx([3e9])


def test_within_a_host_nothing_of_the_network_is_used(tmp_path):
    made = transport(tmp_path, gpus=2)
    assert rates(made, [0, 1], [1, 0]) == pytest.approx([100e9, 100e9])
    names = {made.cluster.resource_name(int(r)) for r in made.paths([0], [1]).resource}
    assert names == {"h-0/gpu0 nvlink out", "h-0/gpu1 nvlink in"}


def test_without_nvlink_gpus_meet_over_pcie(tmp_path):
    """Below one switch at its rate; a host bridge needs 6/5 of a byte's packets."""
    pcie = {"nvlink": "none", "numa_nodes": 1, "pcie": {"rate": "12GB/s", "latency": "2us"}}
    made = transport(tmp_path, gpus=4, host=pcie | {"pcie_switches": 2})
    assert rates(made, [0], [1]) == pytest.approx([12e9])
    assert rates(made, [0], [2]) == pytest.approx([10e9])
    assert made.paths([0], [1]).alpha_s == pytest.approx([2e-6])
    assert rates(transport(tmp_path, gpus=2, host=pcie), [0], [1]) == pytest.approx([10e9])


def test_latency_is_the_sum_of_the_way(tmp_path):
    """Three links of 3 us, PCIe at both ends, and the stacks of both hosts together."""
    made = transport(tmp_path, host={"pcie": {"rate": "1TB/s", "latency": "2us"}},
                     fabric=LEAF_SPINE | {"latency": "3us"})
    assert made.paths([0], [1]).alpha_s == pytest.approx([4 * 3e-6 + 2 * 2e-6 + ALPHA_S])
    assert made.paths([0], [1]).message_s == pytest.approx([0.0])


def test_two_vnics_share_the_hosts_cap(tmp_path):
    made = shared(tmp_path, {"host_rate": "10Gbps"})
    assert rates(made, [0, 1], [2, 3]) == pytest.approx([0.625e9, 0.625e9])
    assert rates(made, [0, 2], [2, 0]) == pytest.approx([1.25e9, 1.25e9])


def test_a_vnic_has_a_cap_of_its_own(tmp_path):
    made = shared(tmp_path, {"host_rate": "10Gbps", "vnic_rate": "6Gbps"})
    assert rates(made, [0], [2]) == pytest.approx([0.75e9])
    assert rates(made, [0, 1], [2, 3]) == pytest.approx([0.625e9, 0.625e9])
    assert rates(made, [0, 0], [2, 3]) == pytest.approx([0.375e9, 0.375e9])


@pytest.mark.parametrize(("sockets", "wanted"), [(1, 0.25e9), (2, 0.5e9), (8, 1.25e9)])
def test_sockets_multiply_the_cap_of_one_flow(tmp_path, sockets, wanted):
    made = shared(tmp_path, {"host_rate": "10Gbps", "flow_rate": "2Gbps"},
                  scenario={"sockets": sockets})
    assert rates(made, [0], [2]) == pytest.approx([wanted])


def test_the_stacks_own_cap_of_a_flow(tmp_path):
    made = shared(tmp_path, {}, stack={"flow_rate": "16Gbps"}, scenario={"sockets": 2})
    assert rates(made, [0, 1], [2, 3]) == pytest.approx([4e9, 4e9])


def test_packets_are_capped_per_host_and_direction(tmp_path):
    """Half a million packets a second of 1,500 B, for both vNICs together."""
    made = shared(tmp_path, {"packet_rate": "0.5Mpps"})
    assert rates(made, [0, 1], [2, 3]) == pytest.approx([0.375e9, 0.375e9])
    assert rates(made, [0, 2], [2, 0]) == pytest.approx([0.75e9, 0.75e9])
    jumbo = shared(tmp_path, {"packet_rate": "0.5Mpps", "mtu": "9000B"})
    assert rates(jumbo, [0], [2]) == pytest.approx([4.5e9])


def test_headers_take_their_share(tmp_path):
    """90 B of headers, 38 of them Ethernet's own: 1,448 B of payload in 1,538 B on the wire."""
    made = shared(tmp_path, {"flow_rate": "10Gbps"}, stack={"headers": "90B"})
    assert rates(made, [0], [2]) == pytest.approx([1.25e9 * 1448 / 1538])
    bare = transport(tmp_path, stacks={"ideal": IDEAL | {"headers": "90B"}})
    assert rates(bare, [0], [1]) == pytest.approx([B * 1448 / 1538])


def test_an_overlays_headers_burden_links_and_not_the_tenants_caps(tmp_path):
    overlay = {"overlay": {"headers": "50B"}}
    made = shared(tmp_path, overlay, stack={"headers": "90B"})
    assert rates(made, [0], [2]) == pytest.approx([B * 1448 / 1588])
    capped = shared(tmp_path, overlay | {"host_rate": "50Gbps"}, stack={"headers": "90B"})
    assert rates(capped, [0], [2]) == pytest.approx([B / 2 * 1448 / 1538])


def test_cores_pay_for_bytes_and_packets_at_both_ends(tmp_path):
    """1 ns a byte and 1.5 us a packet of 1,500 B: 2 ns a byte."""
    cost = {"cost_per_byte": "1ns", "cost_per_packet": "1.5us", "threads": 1, "cores": 1}
    made = shared(tmp_path, {}, stack=cost)
    assert rates(made, [0], [2]) == pytest.approx([0.5e9])
    assert rates(made, [0, 1], [2, 3]) == pytest.approx([0.25e9, 0.25e9])
    assert rates(made, [0, 2], [2, 0]) == pytest.approx([0.25e9, 0.25e9])


THREAD = {"cost_per_byte": "1ns", "threads": 1}
"""A stack whose one thread a process moves 1 GB/s."""


def test_a_slower_cluster_is_slower_in_all_and_a_faster_one_no_faster_than_its_lines(tmp_path):
    """deviation 2 halves what threads, flows and lines reach; 0.5 doubles the first two alone."""
    def rate(deviation, **stack):
        given = {"headers": "0B", "cost_per_byte": "0.05ns", "deviation": deviation} | stack
        made = transport(tmp_path, stacks={"ideal": IDEAL | given | {"threads": 1}})
        paths = made.paths([0], [1])
        return rates(made, [0], [1])[0], paths.alpha_s[0]

    thread, line, flow = {"cost_per_byte": "1ns"}, {}, {"flow_rate": "8Gbps"}
    for stack, alone, twice, half in ((thread, 1e9, 0.5e9, 2e9), (line, B, B / 2, B),
                                      (flow, 1e9, 0.5e9, 2e9)):
        assert rate(1.0, **stack)[0] == pytest.approx(alone)
        assert rate(2.0, **stack) == pytest.approx((twice, 2 * ALPHA_S))
        assert rate(0.5, **stack) == pytest.approx((half, ALPHA_S / 2))


def test_each_process_has_a_thread_for_all_its_connections(tmp_path):
    made = shared(tmp_path, {}, stack=THREAD)
    assert rates(made, [0], [2]) == pytest.approx([1e9])
    assert rates(made, [0, 1], [2, 3]) == pytest.approx([1e9, 1e9])
    assert rates(made, [0, 2], [2, 0]) == pytest.approx([0.5e9, 0.5e9])
    assert rates(made, [0, 0], [2, 3]) == pytest.approx([0.5e9, 0.5e9])


def test_the_hosts_cores_are_above_the_threads(tmp_path):
    made = shared(tmp_path, {}, stack=THREAD, host={"cores": 1})
    assert rates(made, [0, 1], [2, 3]) == pytest.approx([0.5e9, 0.5e9])


def sockets(folder, *, driver="other", **scenario):
    """Two hosts of two GPUs over NCCL's sockets, whose threads move 1 GB/s each."""
    stack = {"base": "kernel-tcp", "cost_per_byte": "1ns", "cost_per_packet": "0s",
             "headers": "0B", "flow_rate": "1000Tbps", "memory_per_byte": 0}
    return transport(folder, gpus=2, nic={"driver": driver}, stacks={"tcp": stack},
                     scenario={"stack": "tcp"} | scenario)


@pytest.mark.parametrize(("driver", "helpers", "flows"), [
    ("other", 0, 1), ("ena", 2, 16), ("gve", 4, 4)])
def test_nccl_chooses_helpers_and_sockets_by_the_driver(tmp_path, driver, helpers, flows):
    """src/transport/net_socket.cc: 2 x 8 on ENA, 4 x 1 on gVNIC, else the proxy thread itself."""
    style = sockets(tmp_path, driver=driver).style
    assert (style.helpers, style.sockets) == (helpers, flows)


@pytest.mark.parametrize(("given", "wanted"), [
    ({"sockets": 1}, (0, 1)), ({"sockets": 4}, (1, 4)), ({"helpers": 4}, (4, 4)),
    ({"helpers": 2, "sockets": 8}, (2, 8)), ({"helpers": 0}, (0, 1))])
def test_a_scenario_says_helpers_and_sockets_itself(tmp_path, given, wanted):
    style = sockets(tmp_path, **given).style
    assert (style.helpers, style.sockets) == wanted


def test_helpers_belong_to_a_connection(tmp_path):
    """Both directions and each further connection have helpers of their own."""
    made = sockets(tmp_path, helpers=3)
    assert rates(made, [0], [2]) == pytest.approx([3e9])
    assert rates(made, [0, 2], [2, 0]) == pytest.approx([3e9, 3e9])
    assert rates(made, [0, 0], [2, 2], [0, 1]) == pytest.approx([3e9, 3e9])


def test_other_stacks_have_no_helpers(tmp_path):
    with pytest.raises(TopologyError, match="helpers"):
        transport(tmp_path, scenario={"helpers": 2})


def test_bytes_pass_the_memory_of_both_hosts(tmp_path):
    """10 bytes of memory for each byte: 20 GB/s let 2 GB/s in or out, or 1 GB/s of each."""
    made = shared(tmp_path, {}, stack={"memory_per_byte": 10}, host={"memory": "20GB/s"})
    assert rates(made, [0], [2]) == pytest.approx([2e9])
    assert rates(made, [0, 3], [2, 1]) == pytest.approx([1e9, 1e9])


def test_without_peer_access_gpus_meet_in_the_hosts_memory(tmp_path):
    made = transport(tmp_path, gpus=2, host={
        "nvlink": "none", "numa_nodes": 1, "pcie": {"rate": "12GB/s"}, "memory": "20GB/s",
        "peer_access": False})
    assert rates(made, [0, 1], [1, 0]) == pytest.approx([2.5e9, 2.5e9])
    names = {made.cluster.resource_name(int(r)) for r in made.paths([0], [1]).resource}
    assert names == {"h-0/gpu0 pcie out", "h-0/gpu1 pcie in", "h-0/memory0"}


def switched(folder, gpus=4, nics=2, **host):
    """Two hosts whose GPUs and NICs hang on two PCIe switches with uplinks of 10 GB/s."""
    return transport(folder, gpus=gpus, nic={"count": nics, "rate": "400Gbps"},
                     host={"pcie": {"rate": "10GB/s"}, "pcie_switches": 2} | host)


def test_gpus_behind_a_pcie_switch_share_its_uplink(tmp_path):
    """GPUs 0 and 1 are on one switch, 2 and 3 on the other; without NVLink they meet over PCIe."""
    made = switched(tmp_path, nvlink="none")
    assert rates(made, [0, 2], [1, 3]) == pytest.approx([10e9, 10e9])
    assert rates(made, [0, 1], [2, 3]) == pytest.approx([5e9, 5e9])
    staged = switched(tmp_path, nvlink="none", peer_access=False, memory="1TB/s")
    assert rates(staged, [0, 1], [1, 0]) == pytest.approx([5e9, 5e9])


def test_rdma_below_one_pcie_switch_leaves_its_uplink_alone(tmp_path):
    near = switched(tmp_path)
    assert rates(near, [0, 1], [4, 5]) == pytest.approx([10e9, 10e9])
    far = switched(tmp_path, nics=1)  # the NIC is on the first switch, GPUs 2 and 3 on the second
    assert rates(far, [2, 3], [4, 5]) == pytest.approx([5e9, 5e9])
    name = "h-0/PCIe switch1 out"
    assert name in {far.cluster.resource_name(int(r)) for r in far.paths([2], [4]).resource}


def test_bare_metal_has_an_mtu_of_the_fabric(tmp_path):
    fabric = {"template": "single-switch", "latency": "0s", "mtu": "9000B"}
    made = transport(tmp_path, fabric=fabric, stacks={"ideal": IDEAL | {"headers": "90B"}})
    assert made.payload == 8948
    both = shared(tmp_path, {"mtu": "1500B"}, fabric=fabric)
    assert both.payload == 1500


def test_headers_that_fill_the_packet_are_an_error(tmp_path):
    with pytest.raises(TopologyError, match=r"t\.yaml:\d+:\d+: vpc.mtu: 256 B hold no payload"):
        shared(tmp_path, {"mtu": "256B"}, stack={"headers": "400B"})


# ---- paths through the fabric


def test_outer_hashing_puts_all_flows_of_two_hosts_on_one_way(tmp_path):
    def ways(name):
        made = shared(tmp_path, {"overlay": {"hash": name}}, fabric=LEAF_SPINE,
                      scenario={"sockets": 64})
        return links(made, 0, 2)

    assert len(ways("outer")) == 2
    assert len(ways("inner")) == 8


def test_sockets_spread_over_the_spines_and_share_their_rate(tmp_path):
    """Spines of an eighth of the NIC's rate: 64 sockets find all four, one finds one."""
    fabric = LEAF_SPINE | {"rate": "12.5Gbps"}
    (one,) = rates(transport(tmp_path, fabric=fabric), [0], [1])
    assert one == pytest.approx(B / 8)
    made = transport(tmp_path, fabric=fabric, scenario={"sockets": 64})
    assert len(links(made, 0, 1)) == 8
    assert B / 8 < rates(made, [0], [1])[0] < B / 2


def test_spray_uses_all_paths_evenly(tmp_path):
    made = transport(tmp_path, fabric=LEAF_SPINE | {"rate": "12.5Gbps"},
                     scenario={"routing": "spray"})
    assert rates(made, [0], [1]) == pytest.approx([B / 2])


def test_planned_flows_keep_out_of_each_others_way(tmp_path):
    given = {"hosts": 8, "fabric": LEAF_SPINE | {"latency": "1us"}}
    src, dst = np.arange(4), np.arange(4) + 4
    planned = transport(tmp_path, scenario={"routing": "plan"}, **given)
    assert rates(planned, src, dst) == pytest.approx(np.full(4, B))
    hashed = [rates(transport(tmp_path, seed=seed, **given), src, dst).min()
              for seed in range(1, 9)]
    assert min(hashed) < B


def test_channels_are_planned_together(tmp_path):
    """Two channels of two pairs are four flows for four spines of half the NICs' rate."""
    made = transport(tmp_path, hosts=4, fabric=LEAF_SPINE | {"rate": "50Gbps"},
                     scenario={"routing": "plan"})
    pair = rates(made, [0, 1, 0, 1], [2, 3, 2, 3], channel=[0, 0, 1, 1])
    assert pair == pytest.approx(np.full(4, B / 2))


def test_another_seed_hashes_otherwise_and_the_same_one_alike(tmp_path):
    def ways(seed):
        made = transport(tmp_path, hosts=8, fabric=LEAF_SPINE, seed=seed)
        return [links(made, host, 7 - host) for host in range(4)]

    assert ways(3) == ways(3)
    assert len({str(ways(seed)) for seed in range(1, 9)}) > 1


def test_a_plan_over_an_overlay_is_refused(tmp_path):
    with pytest.raises(TopologyError) as refused:
        shared(tmp_path, {"overlay": {"headers": "50B"}}, scenario={"routing": "plan"})
    text = str(refused.value)
    assert "scenarios[0].routing: 'plan' cannot steer an overlay" in text
    assert "allowed: ecmp or spray" in text
    assert refused.value.line > 0


# ---- bonds


def bonded(folder, policy, **given):
    return transport(folder, gpus=2, nic={"ports": 2, "bond": policy, "rate": "50Gbps"}, **given)


def test_two_flows_in_lacps_known_bad_case_get_one_ports_rate(tmp_path):
    """Hashing addresses alone (layer 2+3) puts all flows between two hosts on one port."""
    made = bonded(tmp_path, "lacp-2+3")
    assert rates(made, [0, 1], [2, 3]) == pytest.approx([B / 4, B / 4])


def test_lacp_3_4_collides_by_chance(tmp_path):
    pairs = {round(rates(bonded(tmp_path, "lacp-3+4", seed=seed), [0, 1], [2, 3]).sum() / B, 6)
             for seed in range(1, 17)}
    assert {0.5, 1.0} <= pairs


@pytest.mark.parametrize("flows", [1, 2])
def test_dynamic_aggregation_gets_both_ports(tmp_path, flows):
    made = bonded(tmp_path, "dynamic")
    both = rates(made, [0, 1][:flows], [2, 3][:flows])
    assert both.sum() >= 0.99 * B


def test_a_scenario_overrides_the_bond(tmp_path):
    made = bonded(tmp_path, "lacp-2+3", scenario={"bond": "dynamic"})
    assert rates(made, [0, 1], [2, 3]).sum() == pytest.approx(B)
    none = bonded(tmp_path, "dynamic", scenario={"bond": "none"})
    assert rates(none, [0, 1], [2, 3]).sum() == pytest.approx(B / 2)


def test_each_nic_has_its_own_bond(tmp_path):
    """A dynamic bond sends at both ports to hosts that would answer by one of theirs."""
    group = topology(nic={"ports": 2, "bond": "dynamic", "rate": "50Gbps"})["hosts"][0]
    other = group | {"name": "o", "nics": [group["nics"][0] | {"bond": "lacp-2+3"}]}
    made = transport(tmp_path, hosts=[group, other])
    assert rates(made, [0], [2]) == pytest.approx([B])
    assert rates(made, [2], [0]) == pytest.approx([B / 2])


def test_all_nics_of_a_gpu_carry_a_ring(tmp_path):
    """Two NICs of 12.5 GB/s each: channels begin at a GPU again with its other NIC."""
    built = cluster(tmp_path, hosts=2, gpus=8, nic={"count": 16, "rate": "100Gbps"}, host={
        "gpus": {"count": 8, "model": "A100", "effective": "1TFLOPS"},
        "nvlink": {"rate": "900GB/s", "latency": "0s"}}, scenario={"channels": "auto"})
    row = measure(built, "allreduce", [1 << 30], scenario=built.topology.scenarios[0],
                  algorithms=["ring"]).rows[0]
    assert row.busbw / 1e9 == pytest.approx(200.0, rel=0.02)


def test_dual_tor_bonds_use_both_tors(tmp_path):
    made = transport(tmp_path, hosts=4, nic={"ports": 2, "bond": "dynamic", "rate": "50Gbps"},
                     fabric={"template": "dual-tor", "pairs": 2, "spines": 2, "rate": "100Gbps"})
    assert rates(made, [0], [3]) == pytest.approx([B])


def test_a_gpu_on_another_numa_node_than_its_nic_pays_the_way_there(tmp_path):
    """One NIC of 400 Gb/s on node 0: GPUs 2 and 3 of each host share the link between nodes."""
    far = {"affinity": {"gpu_nodes": [0, 0, 1, 1], "nic_nodes": [0]},
           "numa_link": {"rate": "10GB/s", "latency": "3us"}}
    made = transport(tmp_path, gpus=4, nic={"rate": "400Gbps"}, host=far)
    assert rates(made, [0, 1], [4, 5]) == pytest.approx([25e9, 25e9])
    assert rates(made, [2, 3], [4, 5]) == pytest.approx([5e9, 5e9])
    assert rates(made, [0, 1], [6, 7]) == pytest.approx([5e9, 5e9])
    near_s, out_s, both_s = made.paths([0, 2, 2], [4, 4, 6]).alpha_s
    assert (out_s - near_s, both_s - near_s) == pytest.approx((3e-6, 6e-6))
    names = {made.cluster.resource_name(int(r)) for r in made.paths([2], [4]).resource}
    assert {"h-0/NUMA link1 out", "h-0/NUMA link0 in"} <= names
    assert not [name for name in names if name.startswith("h-1/NUMA")]


def test_gpus_without_nvlink_meet_over_the_link_between_their_nodes(tmp_path):
    made = transport(tmp_path, gpus=4, host={"nvlink": "none", "pcie": {"rate": "12GB/s"},
                                             "affinity": {}})
    assert rates(made, [0], [1]) == pytest.approx([10e9])
    assert rates(made, [0, 1], [2, 3]) == pytest.approx([5e9, 5e9])


@pytest.mark.parametrize(("pcie", "joined"), [(12, 10e9), (24, 16e9), (48, 22e9)])
def test_sockets_are_joined_by_what_nccl_takes_for_their_generation(tmp_path, pcie, joined):
    made = transport(tmp_path, gpus=2, host={"nvlink": "none", "pcie": {"rate": f"{pcie}GB/s"}})
    assert rates(made, [0], [1]) == pytest.approx([min(joined, pcie * 1e9 / 1.2)])


def test_without_affinity_gpus_are_spread_over_nodes_towards_one_another(tmp_path):
    other = {"name": "g", "count": 1, "gpus": {"count": 4, "model": "any",
                                               "effective": "100TFLOPS"},
             "nvlink": "none", "nics": [{"name": "eth", "rate": "400Gbps"}]}
    mixed = transport(tmp_path, hosts=[other, other | {"name": "h", "affinity": {}}])
    assert rates(mixed, [0], [3]) == pytest.approx([22e9])
    assert rates(mixed, [0], [1]) == pytest.approx([40e9])
    assert rates(mixed, [4], [7]) == pytest.approx([22e9])


def far(folder, **scenario):
    """Two hosts of one GPU with 10 Gb/s, 10 ms there and back."""
    return transport(folder, nic={"rate": "10Gbps"},
                     fabric={"template": "single-switch", "latency": "2500us"},
                     scenario={"stack": "kernel-tcp", "sockets": 1, "helpers": 0} | scenario)


def test_a_socket_far_away_carries_a_window_in_a_round_trip(tmp_path):
    assert rates(far(tmp_path), [0], [1]) == pytest.approx([WINDOW_BYTES / 10e-3])
    several = far(tmp_path, sockets=2, helpers=2)
    assert rates(several, [0], [1]) == pytest.approx([2 * WINDOW_BYTES / 10e-3])


def test_a_window_holds_back_no_other_stack_and_no_socket_nearby(tmp_path):
    assert rates(far(tmp_path, stack="ideal", helpers=None), [0], [1])[0] > WINDOW_BYTES / 10e-3
    near = transport(tmp_path, scenario={"stack": "kernel-tcp"})
    assert near.paths([0], [1]).ceiling == pytest.approx([near.ceiling])


def test_the_window_is_that_of_the_packets(tmp_path):
    header = Path("sim/network/packet/tcp.h").read_text("utf-8")
    shown = re.search(r"TCP_RECEIVE_WINDOW \((\d+)u << (\d+)\)", header)
    assert shown is not None
    assert int(shown[1]) << int(shown[2]) == WINDOW_BYTES


def test_packets_far_away_take_as_long(tmp_path):
    made = far(tmp_path, channels=1).cluster
    both = [measure(made, "allreduce", [1 << 30], algorithms=["ring"],
                    settings=Settings(fidelity=fidelity)).rows[0].time_s
            for fidelity in ("flow", "packet")]
    assert both[0] == pytest.approx(both[1], rel=0.03)
