"""Keys that once changed nothing: each changes the answer, or the file is refused."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from sim.answer.collective_bench import measure
from sim.answer.scenario import Run
from sim.run import main
from sim.schema import TopologyError, load
from sim.step.recipe import choose_plan
from tests.support.cluster_files import RATE_BPS, cluster, topology, write
from tests.support.sim_runs import rows_of

TOPK = {"LIGHT_TOPK_ALLREDUCE": 1, "LIGHT_TOPK_THRESHOLD": 1}


def step_ms(tmp_path, **given):
    return rows_of(write(tmp_path, topology(**given)))[0]["step_ms"]


def test_a_burst_carries_a_collective_until_its_bucket_is_empty(tmp_path):
    """25 MB at 80 Gb/s for 10 Gb/s: the bucket lasts for all of it or, at 1 GB, for little."""
    def seconds(size, **vpc):
        built = cluster(tmp_path, hosts=2, vpc={"vnics": 1, "host_rate": "10Gbps"} | vpc)
        return measure(built, "allreduce", [size]).rows[0].time_s

    burst = {"burst": {"rate": "80Gbps", "bucket": "100MB"}}
    assert seconds(25_000_000, **burst) < seconds(25_000_000) / 6
    slow, fast = seconds(10**9), seconds(10**9, **burst)
    # The bucket drains at 70 of 80 Gb/s, in 11.4 ms; the rest goes at 10 Gb/s.
    assert slow - fast == pytest.approx(100e6 * 8 / 10e9, rel=0.01)


@pytest.mark.parametrize("key", ["LIGHT_TOPK_ALLREDUCE", "LIGHT_TOPK_THRESHOLD", "LIGHT_TOPK_FP16",
                                 "LIGHT_HIERARCHICAL_THRESHOLD"])
def test_light_settings_that_2d_does_not_read_are_refused(tmp_path, key):
    path = write(tmp_path, topology(gpus=2, scenario={
        "allreduce": "2d", "light": {"LIGHT_INTRA_SIZE": 2, key: 1}}))
    with pytest.raises(TopologyError, match="has no effect on allreduce: 2d") as caught:
        load(path)
    assert caught.value.key == f"scenarios[0].light.{key}"


@pytest.mark.parametrize("framework", ["ddp", "mine"])
def test_ddp_fuses_by_size(tmp_path, framework):
    def buckets(name, **fusion):
        built = cluster(tmp_path, gpus=2, frameworks={
            "mine": {"base": "ddp", "overlap": 1.0}, "free": {"base": "horovod"}},
            workload={"model": "vgg16", "batch": 32, "framework": name},
            scenario={"fusion": fusion})
        return len(Run(built, built.topology.scenarios[0], 4).jobs[0].work.elements)

    assert buckets(framework) == buckets(framework, rule="size")
    assert buckets(framework) != buckets(framework, rule="cycle")
    assert buckets("free") == buckets("free", rule="cycle") != buckets("free", rule="size")


def test_fp16_halves_the_values_of_topk(tmp_path):
    def sent(fp16):
        built = cluster(tmp_path, hosts=4, scenario={"allreduce": "light", "light": TOPK,
                                                     "fp16": fp16})
        job = Run(built, built.topology.scenarios[0], 4).jobs[0]
        plan = choose_plan(job.recipe, job.groups, 10**6).plan
        return sum(int(phase.bytes_per_edge.sum()) for phase in plan.phases())

    assert sent(fp16=True) / sent(fp16=False) == pytest.approx(6 / 8, rel=1e-3)


@pytest.mark.parametrize(("gbps", "gigabytes"), [(25, 12), (100, 12), (200, 24), (400, 48)])
def test_pcie_left_out_is_of_the_generation_that_the_nic_needs(tmp_path, gbps, gigabytes):
    given = topology(rate_bps=gbps * 1e9)
    del given["hosts"][0]["pcie"]
    group = load(write(tmp_path, given)).hosts[0]
    assert group.pcie_link.rate == gigabytes * 8e9
    assert group.pcie_link.latency == 1e-6


def test_a_faster_nic_is_not_held_back_by_a_pcie_that_nobody_named(tmp_path):
    def ms(rate_bps):
        given = topology(rate_bps=rate_bps, scenario={"stack": "rdma"})
        del given["hosts"][0]["pcie"]
        path = write(tmp_path, given)
        result = CliRunner().invoke(main, [str(path), "--collective", "allreduce", "--sizes",
                                           "1GiB", "--json", "-", "--quiet"])
        return json.loads(result.stdout)["rows"][0]["time_us"]

    assert ms(4 * RATE_BPS) < ms(RATE_BPS) / 3


@pytest.mark.parametrize(("collective", "algorithm"), [
    ("reduce-scatter", "reduce-scatter"), ("allgather", "allgather"), ("broadcast", "broadcast"),
    ("allreduce", "tree"), ("allreduce", "ring")])
def test_channels_spread_a_collective_over_the_nics(tmp_path, collective, algorithm):
    """One channel leaves a host by one or two of its eight NICs, eight by all of them."""
    def seconds(channels):
        built = cluster(tmp_path, hosts=2, gpus=8, nic={"count": 8, "rate": "10Gbps"},
                        scenario={"channels": channels})
        rows = measure(built, collective, [1 << 30]).rows
        return next(row.time_s for row in rows if row.algorithm == algorithm)

    assert seconds(8) < seconds(1) / 3


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving-doubling"])
def test_channels_spread_over_the_nics_of_one_gpu(tmp_path, algorithm):
    def seconds(channels):
        built = cluster(tmp_path, hosts=4, gpus=1, nic={"count": 4, "rate": "10Gbps"},
                        scenario={"channels": channels})
        rows = measure(built, "allreduce", [1 << 30]).rows
        return next(row.time_s for row in rows if row.algorithm == algorithm)

    assert seconds(4) == pytest.approx(seconds(1) / 4, rel=0.02)


def test_channels_spread_over_the_vnics_of_one_gpu(tmp_path):
    def seconds(channels):
        built = cluster(tmp_path, hosts=2, gpus=1, vpc={"vnics": 2, "vnic_rate": "10Gbps"},
                        scenario={"channels": channels})
        return measure(built, "allreduce", [1 << 30]).rows[0].time_s

    assert seconds(2) == pytest.approx(seconds(1) / 2, rel=0.02)


def test_channels_spread_flat_topk_over_the_nics(tmp_path):
    def step(channels):
        return step_ms(tmp_path, hosts=2, gpus=8, nic={"count": 8, "rate": "1Gbps"}, scenario={
            "channels": channels, "allreduce": "light", "light": TOPK | {"LIGHT_TOPK_RATIO": 0.1}})

    compute = step_ms(tmp_path, hosts=1, gpus=1)
    assert step(8) - compute < (step(1) - compute) / 3.5
