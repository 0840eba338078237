"""Choices of NCCL, by figures worked out from its tuning table, and their times."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from harp.collectives.protocol import LL, LL128, SIMPLE
from harp.collectives.registry import make_plan
from sim.answer.collective_bench import Timer, measure
from sim.cluster.placement import choose_gpus, place
from sim.network.message_paths import quicker_s
from sim.network.nccl import View, choose, chosen_plan, predict_s
from sim.run import main
from sim.schema.parameters import load_stack
from tests.sim.network.switched_hosts import nvidias, switched
from tests.support.cluster_files import cluster, topology, write
from tests.support.levels import long

V100 = View(ranks=16, hosts=2, generation=0, nvlink=True, rings=1, speed=12.0, channels=2,
            ll128=False)


@pytest.mark.parametrize(("plan", "column", "microseconds"), [
    ("tree", 0, 6.8 + 2 * (7 * 0.6 + 5.0)),
    ("tree", 2, 2 * (7 * 4.0 + 14.0)),
    ("ring", 0, 6.6 + 28 * 1.0 + 2 * 2.7),
    ("ring", 2, 8.4 + 28 * 3.4 + 2 * 14.0)])
def test_short_messages_take_the_latency_of_nccls_table(plan, column, microseconds):
    assert predict_s(V100, "allreduce", plan, column, 8) == pytest.approx(
        microseconds * 1e-6, rel=1e-3)


@pytest.mark.parametrize(("plan", "column", "gigabytes"), [
    ("ring", 2, 12.0 * 16 / 30), ("ring", 0, 6.0 * 16 / 30),
    ("tree", 2, 10.0 / 2), ("tree", 0, 10.0 / 3.8 / 2)])
def test_long_messages_take_the_rate_of_nccls_table(plan, column, gigabytes):
    size = 1 << 40
    view = V100 if plan == "ring" else replace(V100, hosts=4)
    assert predict_s(view, "allreduce", plan, column, size) == pytest.approx(
        size / gigabytes / 1e9, rel=1e-3)


def test_short_messages_go_by_a_tree_and_long_ones_by_a_ring():
    four = replace(V100, ranks=32, hosts=4)
    chosen = [choose(four, "allreduce", size) for size in (8, 1 << 30)]
    assert [(choice.plan, choice.protocol) for choice in chosen] == [("tree", LL),
                                                                     ("ring", SIMPLE)]


@pytest.mark.parametrize(("hosts", "gpus", "model", "name"), [
    (2, 8, "H100", "tree Simple"), (3, 8, "H100", "ring Simple"), (2, 1, "A10G", "ring Simple")])
def test_long_messages_go_as_they_did_on_clouds(tmp_path, hosts, gpus, model, name):
    """Published choices of NCCL 2.11 and 2.22 on virtual NICs: sim/validation/cases.

    Two hosts of eight reach more on the bus than the NIC's rate, which a ring cannot; three reach
    what a forced ring reaches, less than a forced tree.
    """
    built = cluster(tmp_path, hosts=hosts, gpus=gpus, vpc={"vnics": 1}, host={
        "gpus": {"count": gpus, "model": model, "effective": "1TFLOPS"}})
    view = View.of(built, built.topology.scenarios[0], np.arange(built.gpus))
    assert choose(view, "allreduce", 1 << 30).name == name


def test_trees_of_two_hosts_have_twice_the_rate_up_to_the_listed_one():
    size = 1 << 40
    for speed, doubled in ((1.2, 2.4), (10.0, 20.0), (12.0, 24.0), (20.0, 48.0)):
        view = replace(V100, speed=speed)
        assert predict_s(view, "allreduce", "tree", 2, size) == pytest.approx(
            size / (min(doubled * 0.92, 18.5) / 2) / 1e9, rel=1e-3)


def test_of_two_hosts_without_a_rate_a_virtual_nic_counts_as_10_gigabits(tmp_path):
    for given, speed in (({}, 12.0), ({"vpc": {"vnics": 1}}, 1.2),
                         ({"nic": {"driver": "ena"}}, 1.2)):
        built = cluster(tmp_path, hosts=2, rate_bps=100e9, **given)
        assert View.of(built, built.topology.scenarios[0], np.arange(built.gpus)).speed == speed


@pytest.mark.parametrize(("model", "more", "trusted"), [
    ("V100", {}, True), ("A100", {}, True), ("A10G", {}, False), ("H100", {}, True),
    ("V100", {"vpc": {"vnics": 1}}, False), ("A100", {"scenario": {"stack": "kernel-tcp"}}, False)])
def test_ll128_is_chosen_where_nccl_trusts_it(tmp_path, model, more, trusted):
    built = cluster(tmp_path, hosts=2, gpus=8, host={
        "gpus": {"count": 8, "model": model, "effective": "1TFLOPS"}}, **more)
    view = View.of(built, built.topology.scenarios[0], np.arange(built.gpus))
    assert view.ll128 == trusted
    chosen = {choose(view, "allreduce", 1 << power).protocol for power in range(3, 32)}
    assert (LL128 in chosen) == trusted


def tree_gigabytes(folder, model, nic, hosts=2, nvlink="900GB/s", size=1 << 30):
    """GB/s on the bus of a tree, where links cost no time but bytes."""
    gpus = {"count": 8, "model": model, "effective": "1TFLOPS"}
    built = cluster(folder, hosts=hosts, gpus=8, nic=nic, scenario={"channels": "auto"},
                    host={"gpus": gpus, "nvlink": {"rate": nvlink, "latency": "0s"}})
    return measure(built, "allreduce", [size], scenario=built.topology.scenarios[0],
                   algorithms=["tree"]).rows[0].busbw / 1e9


@pytest.mark.parametrize(("model", "nic", "hosts", "gigabytes"), [
    ("V100", {"count": 4, "rate": "100Gbps"}, 2, 74.0),
    ("V100", {"count": 4, "rate": "100Gbps"}, 4, 40.0),
    ("A100", {"count": 4, "rate": "100Gbps"}, 2, 94.4),
    ("H100", {"count": 8, "rate": "200Gbps"}, 2, 331.2)])
def test_trees_through_hosts_reach_what_nccls_table_gives_them(tmp_path, model, nic, hosts,
                                                               gigabytes):
    """18.5, 10, 23.6 and 41.4 GB/s on the bus for each NIC, of whatever rate."""
    assert tree_gigabytes(tmp_path, model, nic, hosts) == pytest.approx(gigabytes, rel=0.01)


def test_a_tree_is_no_faster_than_the_links_inside_a_host(tmp_path):
    nic = {"count": 8, "rate": "200Gbps"}
    assert tree_gigabytes(tmp_path, "A100", nic, nvlink="150GB/s") == pytest.approx(150, rel=0.01)


def test_a_tree_of_some_mebibytes_reaches_the_share_of_nccls_table(tmp_path):
    """Of Simple 0.7 at 32 MiB (treeCorrectionFactor)."""
    nic = {"count": 4, "rate": "200Gbps"}
    assert tree_gigabytes(tmp_path, "A100", nic, size=32 << 20) == pytest.approx(0.7 * 94.4,
                                                                                 rel=0.05)


@pytest.mark.parametrize(("stack", "model", "choices"), [
    ("efa", "A100", {"Ring Simple", "Tree Simple"}), ("tcpx", "H100", {"Ring Simple"}),
    ("slingshot", "GH200 120GB", {"Ring LL", "Ring Simple", "Tree LL", "Tree Simple",
                                  "NVLSTree Simple"}),
    ("tcpxo", "H100", {"Ring LL128", "Ring Simple", "Tree LL128", "Tree Simple"})])
def test_a_plugins_settings_leave_fewer_choices(tmp_path, stack, model, choices):
    """AWS's plugin before p5, and Google's guides to A3 High and A3 Mega."""
    built = switched(tmp_path, model, hosts=2)
    scenario = built.topology.scenarios[0].model_copy(update={"stack": stack})
    view = View.of(built, scenario, np.arange(built.gpus))
    found = {choose(view, "allreduce", 1 << power) for power in range(3, 34)}
    assert {f"{choice.algorithm} {choice.protocol.name}" for choice in found} <= choices


def test_hosts_of_p5_have_all_choices(tmp_path):
    built = switched(tmp_path, hosts=2)
    scenario = built.topology.scenarios[0].model_copy(update={"stack": "efa"})
    view = View.of(built, scenario, np.arange(built.gpus))
    assert choose(view, "allreduce", 8).protocol is LL
    assert choose(view, "allreduce", 8 << 30).algorithm == "NVLSTree"


def test_four_gh200_have_no_switch_that_adds(tmp_path):
    """Six NVLinks join each two of them."""
    assert nvidias(switched(tmp_path, "GH200 120GB", hosts=1, gpus=4)).choice == "ring Simple"
    assert nvidias(switched(tmp_path, "GH200 120GB", hosts=1, gpus=8)).choice == "nvls Simple"


@pytest.mark.parametrize(("stack", "gigabytes"), [("efa", 11.8), ("efa-no-rdma", 3.76)])
def test_without_rdma_one_thread_copies_what_it_sends_and_receives(tmp_path, stack, gigabytes):
    """0.133 ns for each byte of each way."""
    built = cluster(tmp_path, hosts=2, gpus=1, nic={"rate": "100Gbps"}, scenario={"stack": stack})
    assert nvidias(built).busbw / 1e9 == pytest.approx(gigabytes, rel=0.02)


def timer(built):
    scenario = built.topology.scenarios[0]
    gpus = choose_gpus(built, range(built.hosts), built.gpus, affinity=True)
    placement = place(built, gpus, 1, affinity=True)
    return Timer(built, load_stack("ideal", built.topology.stacks), scenario, placement)


def test_ll_saves_latency_inside_a_host(tmp_path):
    plan, made = make_plan("ring", ranks=8, nbytes=32), timer(cluster(tmp_path, hosts=1, gpus=8))
    slow, fast = (made.seconds(plan, protocol) for protocol in (SIMPLE, LL))
    assert fast / slow == pytest.approx(0.6 / 3.4, rel=1e-3)


def test_ll_saves_latency_between_hosts(tmp_path):
    """4.6 us a hop by NCCL's own table."""
    plan, made = make_plan("ring", ranks=2, nbytes=8), timer(cluster(tmp_path, hosts=2, gpus=1))
    slow_s, fast_s = (made.seconds(plan, protocol) for protocol in (SIMPLE, LL))
    assert slow_s - fast_s == pytest.approx(2 * 4.6e-6, rel=0.01)


def test_no_protocol_saves_more_than_half_of_a_hop():
    assert quicker_s(np.array([2e-6, 40e-6]), LL) == pytest.approx([1e-6, 35.4e-6])


def test_a_protocol_pays_for_its_flags(tmp_path):
    made, times = timer(cluster(tmp_path, hosts=2)), []
    for protocol in (SIMPLE, LL128, LL):
        chosen = choose(V100, "allreduce", 1 << 30)._replace(plan="ring", protocol=protocol)
        assert chosen.name == f"ring {protocol.name}"
        times.append(made.seconds(chosen_plan(chosen, 2, 1 << 30, unit_bytes=4, group=1),
                                  protocol))
    assert times[1] / times[0] == pytest.approx(128 / 120, rel=0.01)
    assert times[2] / times[0] == pytest.approx(2, rel=0.01)


@long
def test_the_bench_prints_nccls_pick_beside_the_others(tmp_path):
    path = write(tmp_path, topology(hosts=2, gpus=4))
    arguments = [str(path), "--collective", "allreduce", "--sizes", "8:1GiB:1024", "--json", "-"]
    result = CliRunner().invoke(main, [*arguments, "--quiet"])
    rows = [row for row in json.loads(result.stdout)["rows"] if row["algorithm"] == "NCCL"]
    assert rows[0]["choice"] == "tree LL"
    assert rows[-1]["choice"].endswith(("Simple", "LL128"))
    assert not any(row["choice"] for row in json.loads(result.stdout)["rows"]
                   if row["algorithm"] != "NCCL")
    shown = CliRunner().invoke(main, arguments[:-2]).output
    assert "chooses" in shown
    assert "tree LL" in shown
    assert "CollNet and PAT" in " ".join(shown.split())


@pytest.mark.parametrize("collective", ["reduce-scatter", "allgather", "broadcast", "alltoall"])
def test_nccl_has_a_row_where_it_chooses(tmp_path, collective):
    rows = measure(cluster(tmp_path, hosts=2, gpus=2), collective, [1 << 20]).rows
    chosen = [row.choice for row in rows if row.algorithm == "NCCL"]
    assert len(chosen) == (collective in ("reduce-scatter", "allgather"))


def test_one_gpu_a_host_exposes_the_latency_of_the_network():
    alone = replace(V100, ranks=2)
    assert predict_s(alone, "allreduce", "ring", 0, 8) == pytest.approx(
        (6.6 + 2 * 5.0) * 1e-6, rel=1e-3)
