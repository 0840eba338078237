"""The limit of a row: the path through the spans, and that raising it helps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.answer.scenario import Settings, run_scenario
from sim.cluster.cluster import Cluster
from sim.network.flow.flow_network import FLOW
from sim.network.flow.fluid import CEILING, Fluid
from sim.network.limits import RESOURCES
from sim.records.results import Limit, Span
from sim.schema import load
from sim.step.critical_path import COMPUTE, WAITING, critical_path, mean_path
from tests.support.cluster_files import IDEAL, cluster

MORE = 1.1
SURE = 1e-3
"""Share of a step above which a limit is no rounding error."""


def spans(*rows):
    return [Span(track, "", kind, begin, end, limit) for track, kind, begin, end, limit in rows]


def shares(path):
    return {limit.name: pytest.approx(limit.seconds) for limit in path}


def test_the_path_is_what_each_part_waited_for():
    """The bucket that left at 2 s ends at 9 s; nothing waited for the pass done at 4 s."""
    path = critical_path(spans(
        ("g", "forward", 0, 1, ""), ("g", "backward", 1, 2, ""), ("g", "backward", 2, 4, ""),
        ("g/s", "negotiation", 2, 2.5, ""), ("g/s", "latency", 2.5, 3, ""),
        ("g/s", "transfer", 3, 8, "NIC"), ("g/s", "transfer", 8, 9, "PCIe"),
        ("g", "update", 9, 10, "")), (0, 10))
    assert shares(path) == {"NIC": 5, COMPUTE: 2, "PCIe": 1, "framework": 1, "latency": 0.5,
                            "coordination": 0.5}
    assert [limit.name for limit in path[:2]] == ["NIC", COMPUTE]


def test_time_without_a_span_is_waiting():
    path = critical_path(spans(("g", "forward", 1, 2, ""), ("g/s", "transfer", 4, 5, "NIC")),
                         (0, 6))
    assert shares(path) == {WAITING: 4, COMPUTE: 1, "NIC": 1}
    assert shares(critical_path([], (0, 3))) == {WAITING: 3}


def test_steps_are_averaged():
    assert shares(mean_path([(Limit("a", 2.0),), (Limit("b", 3.0), Limit("a", 1.0))])) == {
        "a": 1.5, "b": 1.5}


@given(st.lists(st.tuples(st.sampled_from("gs"), st.sampled_from(["backward", "transfer"]),
                          st.integers(0, 20), st.integers(1, 9)), max_size=12))
def test_the_path_is_as_long_as_the_step(rows):
    path = critical_path([Span(track, "", kind, at, at + long) for track, kind, at, long in rows
                          if at + long <= 25], (0, 25))
    assert sum(limit.seconds for limit in path) == pytest.approx(25)


def test_the_engine_names_what_holds_the_last_flow():
    """Flows of 10 and 30 units share resource 0; the larger one also crosses resource 1."""
    net = Fluid([10.0, 4.0, 50.0])
    first = net.add_routes([0, 1, 4], [0, 0, 1, 2])
    flows = net.start([first, first + 1], [10.0, 30.0])
    assert net.next_s == pytest.approx(10 / 6)
    assert net.holding(flows).tolist() == [1]
    net.set_capacity(1, 40.0)
    assert net.next_s == pytest.approx(2)
    assert net.holding(flows).tolist() == [0]
    net.set_capacity(1, 5.0)
    assert net.next_s > 0
    assert sorted(net.holding(flows).tolist()) == [0, 1]
    capped = net.start(first, [1e9], ceilings=[0.5])
    assert net.next_s > 0
    assert net.holding(capped).tolist() == [CEILING]


# ---- raising what is named helps, raising anything else does not


def raised(made: Cluster, name: str) -> Cluster:
    """The cluster with 10 % more of one kind of resource."""
    kinds = {"NIC": "link"} | {name: kind for kind, name in RESOURCES.items()}
    changed = Cluster(made.topology)

    def capacities(*given):
        parts = {kind: slice(block.first, block.first + len(block.capacity))
                 for kind, block in changed.blocks.items()}
        capacity = made.capacities(*given)
        for kind, part in parts.items():
            if kind.removesuffix("_out").removesuffix("_in") == kinds[name]:
                capacity[part] *= MORE
        return capacity

    changed.capacities = capacities
    return changed


def step_s(made, figures=None):
    found = run_scenario(made, made.topology.scenarios[0], made.gpus, Settings(figures or {}))
    return found[0]


def gains(made):
    """Seconds that 10 % more of each thing takes off the step."""
    base = step_s(made).step_s
    found = {name: base - step_s(raised(made, name)).step_s
             for name in ("NIC", "NVLink", "PCIe", "host cap", "network thread", "stack cores")}
    found[COMPUTE] = base - step_s(made, {"gpus.effective": 1e14 * MORE}).step_s
    found[FLOW] = base - step_s(made, {
        "ideal.flow_rate": step_rate(made) * MORE}).step_s
    found["latency"] = base - step_s(made, {
        "ideal.start_latency": made.topology.stacks["ideal"].start_latency.value / MORE}).step_s
    return found


def step_rate(made):
    return made.topology.stacks["ideal"].flow_rate.value


@pytest.mark.parametrize("seed", range(16))
def test_ten_percent_more_of_the_bottleneck_helps_and_of_nothing_else(tmp_path, seed):
    rng = np.random.default_rng(seed)
    nic, host, flow, pcie, nvlink = (10 ** rng.uniform(1, 2.5, 5)).tolist()
    made = cluster(
        tmp_path, gpus=4, rate_bps=nic * 1e9,
        host={"pcie": {"rate": f"{pcie / 8}GB/s", "latency": "0s"},
              "nvlink": {"rate": f"{nvlink / 8}GB/s", "latency": "0s"}},
        vpc={"vnics": 1, "host_rate": f"{host}Gbps"},
        stacks={"ideal": IDEAL | {
            "flow_rate": f"{flow}Gbps", "cost_per_byte": f"{10 ** rng.uniform(-2, 0)}ns",
            "start_latency": f"{10 ** rng.uniform(0, 3)}us", "cores": 1}},
        workload={"model": "vgg16", "batch": int(rng.choice([2, 32, 128])), "framework": "free"},
        scenario={"allreduce": str(rng.choice(["ring", "2d"])), "fusion": {"cycle": "0s"}})
    row = step_s(made)
    limits = {limit.name: limit.seconds for limit in row.limits}
    assert sum(limits.values()) == pytest.approx(row.step_s)
    slack = SURE * row.step_s
    found = gains(made)
    for name, gain in found.items():
        held = limits.pop(name, 0.0) * (1 - 1 / MORE)
        assert -slack <= gain <= held + slack, name
        # Less than all of it where something else soon becomes the limit.
        assert gain > 0 or held <= slack, name
    best = max(found.items(), key=lambda pair: pair[1])
    if best[1] > 0.02 * row.step_s:
        assert best[0] in [limit.name for limit in row.limits[:2]]


def test_limits_that_tie_are_all_named(tmp_path):
    made = cluster(tmp_path, rate_bps=10e9, vpc={"vnics": 1, "host_rate": "10Gbps"})
    assert step_s(made).limits[0].name == "NIC + host cap"


def test_communication_that_is_hidden_limits_nothing(tmp_path):
    row = step_s(cluster(tmp_path, workload={"model": "resnet50", "batch": 512,
                                             "framework": "free"}))
    assert row.limits[0].name == COMPUTE
    assert row.limits[0].seconds > 0.98 * row.step_s


def test_every_shipped_row_is_explained_whole():
    from tests.system.test_topologies import FOLDER, NAMES

    name = next(name for name in NAMES if name.startswith("two-jobs"))
    made = Cluster(load(FOLDER / f"{name}.yaml"))
    for row in run_scenario(made, made.topology.scenarios[1], made.gpus):
        assert np.isclose(sum(limit.seconds for limit in row.limits), row.step_s)
        assert row.limits[0].name == "fabric"
