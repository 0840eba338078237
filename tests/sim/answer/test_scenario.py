"""Whole scenarios: what every answer must satisfy, jobs side by side, bursts, settings."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.answer.scenario import Run, Settings, run_scenario
from sim.cluster.cluster import Cluster
from sim.schema import TopologyError, load
from sim.workloads.models import get_model
from tests.support.cluster_files import IDEAL, topology, write
from tests.support.levels import draws
from tests.support.sim_runs import run_all

VGG_BYTES = 4 * get_model("vgg16").parameters
RESNET_BYTES = 4 * get_model("resnet50").parameters
FAST = {"gpus": {"count": 1, "model": "any", "effective": "1000000PFLOPS"}}
"""Hosts of GPUs that compute in no time, so that a step is its communication."""
AT_ONCE = {"threshold": "0B", "cycle": "0s"}


def build(folder, **given_):
    return Cluster(load(write(folder, topology(**given_))))


def answers(folder, **given_):
    """Rows of the first scenario on all GPUs."""
    made = build(folder, **given_)
    return run_scenario(made, made.topology.scenarios[0], made.gpus)


options = st.fixed_dictionaries({}, optional={
    "stack": st.sampled_from(["ideal", "kernel-tcp", "rdma", "taco-harp", "harp"]),
    "framework": st.sampled_from(["free", "horovod", "lightcc", "ddp"]),
    "allreduce": st.sampled_from(["ring", "tree", "halving-doubling", "2d", "light"]),
    "fp16": st.booleans(), "channels": st.integers(1, 4), "sockets": st.integers(1, 4),
    "streams": st.integers(1, 3), "routing": st.sampled_from(["ecmp", "spray", "plan"]),
    "affinity": st.booleans(), "steps": st.integers(1, 2),
    "fusion": st.sampled_from([AT_ONCE, {"threshold": "1MiB", "cycle": "2ms"}, {"rule": "size"}])})


@given(options, st.sampled_from(["vgg16", "resnet50", "bert-base", "moe"]),
       st.sampled_from([(1, 4), (2, 2), (3, 4)]))
@settings(max_examples=draws(40), deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_what_every_answer_satisfies(tmp_path, scenario, model, shape):
    hosts, gpus = shape
    (row,) = answers(tmp_path, hosts=hosts, gpus=gpus, scenario=scenario, rate_bps=25e9,
                     workload={"model": model, "batch": 4, "framework": "free"},
                     fabric={"template": "leaf-spine", "leaves": hosts, "spines": 2})
    parts = row.breakdown
    assert min(parts.compute_s, parts.exposed_transfer_s, parts.selection_s, parts.latency_s,
               parts.message_s) >= -1e-12
    assert parts.step_s == pytest.approx(row.step_s, rel=1e-9)
    assert row.images_per_s == pytest.approx(hosts * gpus * 4 / row.step_s, rel=1e-12)
    assert 0 < row.efficiency <= 1 + 1e-9
    # The timeline is the last step's, whose length may differ from the mean by how ties fell.
    last = row.start_s + row.step_s * (1 + 1e-3)
    assert all(row.start_s - 1e-9 <= span.start_s < span.end_s <= last + 1e-6
               for span in row.spans)
    assert {span.kind for span in row.spans} >= {"forward", "backward"}


@given(st.sampled_from(["ring", "tree", "2d", "halving-doubling"]),
       st.sampled_from(["kernel-tcp", "rdma", "ideal"]))
@settings(max_examples=draws(12), deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_faster_network_never_trains_slower(tmp_path, allreduce, stack):
    steps = [answers(tmp_path, hosts=2, gpus=4, rate_bps=rate,
                     scenario={"allreduce": allreduce, "stack": stack})[0].step_s
             for rate in (1e9, 10e9, 100e9)]
    assert steps[0] >= steps[1] * (1 - 1e-9)
    assert steps[1] >= steps[2] * (1 - 1e-9)


def test_one_gpu_is_the_models_flops_over_its_speed(tmp_path):
    model = get_model("vgg16")
    (row,) = answers(tmp_path, hosts=1)
    wanted = 128 * (model.forward_flops + model.backward_flops) / 100e12
    assert row.step_s == pytest.approx(wanted)
    assert row.efficiency == pytest.approx(1)


def test_a_step_of_pure_communication_is_its_rings(tmp_path):
    """Two ranks send all gradients once, in 32 tensors of two steps each, behind a frame.

    A step of 12 of them is longer than a slot of 512 KiB: its first piece goes on while the rest
    comes, which hides the second latency.
    """
    (row,) = answers(tmp_path, host=FAST, scenario={"fusion": AT_ONCE})
    assert row.step_s == pytest.approx(VGG_BYTES / 12.5e9 + (32 * 2 - 12) * 10.12e-6, rel=1e-4)


# ---- jobs side by side


ACROSS = {"template": "leaf-spine", "leaves": 2, "spines": 1, "rate": "100Gbps", "latency": "0s"}
JOBS = [{"name": "a", "hosts": ["h-0", "h-2"]}, {"name": "b", "hosts": ["h-1", "h-3"]}]
NO_LATENCY = {"ideal": IDEAL | {"start_latency": "0s"}}


def jobs(folder, jobs_, **more):
    """Two jobs across one link between two leaves, with GPUs that compute in no time."""
    given_ = {"hosts": 4, "host": FAST, "fabric": ACROSS, "jobs": jobs_, "stacks": NO_LATENCY,
              "scenario": {"fusion": AT_ONCE}}
    return {row.job: row for row in answers(folder, **given_ | more)}


def test_two_equal_jobs_halve_a_bottleneck(tmp_path):
    rows = jobs(tmp_path, JOBS)
    assert [rows[name].step_s for name in "ab"] == pytest.approx(
        [2 * VGG_BYTES / 12.5e9] * 2, rel=1e-3)
    apart = jobs(tmp_path, JOBS, fabric={"template": "single-switch", "latency": "0s"})
    assert apart["a"].step_s == pytest.approx(VGG_BYTES / 12.5e9, rel=1e-3)


def test_jobs_keep_one_another_company_until_all_are_done(tmp_path):
    """Each has half the link all the time, though b is done with its step much earlier.

    While the first frames of b's short messages are on their way, a has all of it.
    """
    small = {"model": "resnet50", "batch": 1, "framework": "free"}
    rows = jobs(tmp_path, [JOBS[0], JOBS[1] | {"workload": small}])
    assert rows["a"].step_s == pytest.approx(2 * VGG_BYTES / 12.5e9, rel=5e-3)
    assert rows["b"].step_s == pytest.approx(2 * RESNET_BYTES / 12.5e9, rel=5e-3)
    assert rows["b"].images_per_s == pytest.approx(2 / rows["b"].step_s)
    assert max(span.end_s for span in rows["b"].spans) <= 1.01 * rows["b"].step_s


def test_a_job_that_starts_later_disturbs_from_then_on(tmp_path):
    """a sends a third alone, then both halve the link: 1/3 + 2 · 2/3 of the time alone."""
    alone_s = VGG_BYTES / 12.5e9
    rows = jobs(tmp_path, [JOBS[0], JOBS[1] | {"start": f"{alone_s / 3}s"}])
    assert rows["a"].step_s == pytest.approx(alone_s * 5 / 3, rel=1e-3)


# ---- the VPC


def test_a_burst_lasts_as_long_as_its_bucket(tmp_path):
    """250 MB of tokens drain at 125 MB/s: 2 s at 250 MB/s, the rest at 125 MB/s."""
    vpc = {"vnics": 1, "host_rate": "1Gbps", "burst": {"rate": "2Gbps", "bucket": "250MB"}}
    (row,) = answers(tmp_path, host=FAST, vpc=vpc, stacks=NO_LATENCY, scenario={"fusion": AT_ONCE})
    assert row.step_s == pytest.approx(2 + (VGG_BYTES - 500e6) / 125e6, rel=2e-4)


def test_later_steps_find_the_bucket_empty(tmp_path):
    vpc = {"vnics": 1, "host_rate": "1Gbps", "burst": {"rate": "2Gbps", "bucket": "250MB"}}
    (row,) = answers(tmp_path, host=FAST, vpc=vpc, stacks=NO_LATENCY,
                     scenario={"fusion": AT_ONCE, "steps": 4})
    first_s = 2 + (VGG_BYTES - 500e6) / 125e6
    assert row.step_s == pytest.approx((first_s + 3 * VGG_BYTES / 125e6) / 4, rel=2e-4)


def test_several_gpus_share_the_hosts_cap(tmp_path):
    """2D sends the gradients once out of each host, whatever the number of vNICs."""
    host = {"gpus": FAST["gpus"] | {"count": 4},
            "nvlink": {"rate": "1000TB/s", "latency": "0s"}}
    (row,) = answers(tmp_path, host=host, vpc={"vnics": 4, "host_rate": "8Gbps"},
                     stacks=NO_LATENCY, scenario={"allreduce": "2d", "fusion": AT_ONCE})
    assert row.step_s == pytest.approx(VGG_BYTES / 1e9, rel=1e-3)


# ---- settings


def test_settings_change_a_figure_and_those_based_on_it(tmp_path):
    made = build(tmp_path, stacks={"ideal": IDEAL, "mine": {"base": "kernel-tcp"}})
    changed = Settings({"kernel-tcp.cost_per_byte": 9e-9, "horovod.per_tensor": 1.0,
                        "gpus.effective": 5.0})
    assert changed.stack(made.topology, "mine").cost_per_byte.value == 9e-9
    assert changed.stack(made.topology, "kernel-tcp").cost_per_byte.value == 9e-9
    assert changed.stack(made.topology, "rdma") == Settings().stack(made.topology, "rdma")
    assert changed.framework(made.topology, "ddp").per_tensor.value == pytest.approx(30e-6)
    assert changed.framework(made.topology, "horovod").per_tensor.value == 1.0
    assert changed.speed(made.flops, None).tolist() == [5.0, 5.0]


def test_run_all_goes_in_the_files_order(tmp_path):
    made = build(tmp_path, gpus=2, scenarios=[
        {"name": "x", "stack": "ideal", "gpus": [4, 1]}, {"name": "y", "stack": "rdma"}])
    rows = run_all(made, made.topology.scenarios)
    assert [(row.name, row.gpus) for row in rows] == [("x", 4), ("x", 1), ("y", 4)]


def test_nothing_is_kept_between_runs(tmp_path):
    made = build(tmp_path, gpus=2)
    scenario = made.topology.scenarios[0]
    first = run_scenario(made, scenario, 4)[0]
    run_scenario(made, scenario, 2)
    assert run_scenario(made, scenario, 4)[0] == first


def test_a_plan_over_an_overlay_is_refused_where_it_stands(tmp_path):
    made = build(tmp_path, vpc={"vnics": 1, "overlay": {"hash": "outer"}}, scenarios=[
        {"name": "a", "stack": "ideal"}, {"name": "b", "stack": "ideal", "routing": "plan"}])
    Run(made, made.topology.scenarios[0], 2)
    with pytest.raises(TopologyError, match=r"scenarios\[1\].routing"):
        Run(made, made.topology.scenarios[1], 2)


@pytest.mark.parametrize("allreduce", ["2d", "ring", "tree"])
def test_hosts_that_differ(tmp_path, allreduce):
    """Groups of the 2D algorithms are as large as fills every host."""
    four = topology(gpus=4)["hosts"][0] | {"count": 1}
    six = four | {"name": "o", "gpus": four["gpus"] | {"count": 6}}
    (row,) = answers(tmp_path, hosts=[four, six], workload={
        "model": "moe", "batch": 1, "framework": "free"}, scenario={
            "allreduce": allreduce, "alltoall": "hierarchical"})
    assert row.gpus == 10
    assert row.breakdown.step_s == pytest.approx(row.step_s)


def test_a_job_within_a_host_ends_after_its_own_steps(tmp_path):
    """Its steps are a thousandth of the other's; simulating them all would add nothing."""
    given_ = {"hosts": 3, "rate_bps": 1e6, "jobs": [
        {"name": "a", "hosts": ["h-0", "h-1"]}, {"name": "b", "hosts": ["h-2"]}]}
    made = build(tmp_path, **given_)
    run = Run(made, made.topology.scenarios[0], 3)
    run.go()
    assert [len(job.steps_s) for job in run.jobs] == [1, 1]
