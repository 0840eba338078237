"""The limit of a transfer whose bytes move packet by packet: the most used resource."""

from __future__ import annotations

import numpy as np
import pytest

from sim.answer.scenario import Settings, run_scenario
from sim.network.limits import USED_LEAST, LimitWatch
from sim.schema.parameters import load_stack
from tests.support.cluster_files import cluster

FABRIC = {"template": "leaf-spine", "leaves": 2, "spines": 2, "rate": "10Gbps"}


@pytest.fixture
def made(tmp_path):
    return cluster(tmp_path, hosts=2, gpus=1, fabric=FABRIC, nic={"rate": "1Gbps"})


def limit_of(made, **used):
    """Limit that is named for a transfer of two seconds, from the use of its resources."""
    used_s = np.zeros(len(made.capacities(load_stack("kernel-tcp", {}))))
    used_s[0] = 40.0  # before
    end = LimitWatch(made, used_s.copy).begin(10.0)
    for kind, (number, share) in used.items():
        used_s[made.blocks[kind][np.array([number])]] += 2.0 * share
    return end(12.0)


def link(made, near, far):
    return int(made.fabric.links_between(near, far)[0])


def test_the_most_used_resource_is_named(made):
    assert limit_of(made, link=(link(made, "h-0/eth0", "leaf0"), 0.95)) == [(10.0, "NIC")]
    assert limit_of(made, link=(link(made, "leaf0", "spine1"), 0.95)) == [(10.0, "fabric")]
    assert limit_of(made, thread=(1, 0.95), link=(0, 0.9)) == [(10.0, "network thread")]


def test_nothing_is_named_that_had_time_left(made):
    assert limit_of(made, thread=(1, USED_LEAST - 0.01)) == [(10.0, "")]


@pytest.mark.parametrize("stack", ["kernel-tcp", "harp"])
def test_packets_name_what_limits_a_row_as_flow_does(tmp_path, stack):
    made = cluster(tmp_path, hosts=4, gpus=1, fabric=FABRIC, nic={"rate": "1Gbps"},
                   scenario={"stack": stack, "channels": 1, "fp16": True},
                   workload={"model": "resnet50", "batch": 32, "framework": "free"})
    flow, packet = (run_scenario(made, made.topology.scenarios[0], 4, Settings(fidelity=fidelity))[
        0].limits[0].name for fidelity in ("flow", "packet"))
    assert packet == flow == "NIC"
