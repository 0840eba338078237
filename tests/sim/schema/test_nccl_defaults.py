"""NCCL's own numbers of channels and sockets."""

from __future__ import annotations

import pytest

from sim.schema import load
from sim.schema.nccl_defaults import channel_count
from tests.support.cluster_files import cluster, topology, write


@pytest.mark.parametrize(("model", "nics", "gpus", "channels"), [
    ("V100", 1, 8, 2), ("A100", 1, 4, 2), ("P100", 1, 1, 2), ("A100", 8, 8, 16), ("A10G", 2, 1, 4),
    ("H100", 1, 8, 16), ("H100", 8, 8, 16), ("GB200", 16, 8, 32)])
def test_channels_are_as_many_as_nccl_opens(tmp_path, model, nics, gpus, channels):
    """Two a NIC, and at least 16 on Hopper: what logs of such hosts say."""
    built = cluster(tmp_path, hosts=2, gpus=gpus, nic={"count": nics}, scenario={
        "channels": "auto"}, host={"gpus": {"count": gpus, "model": model, "effective": "1TFLOPS"}})
    assert channel_count(built.topology, built.topology.scenarios[0]) == channels


def test_channels_are_auto_where_not_given(tmp_path):
    given = topology(hosts=2)
    del given["scenarios"][0]["channels"]
    assert load(write(tmp_path, given)).scenarios[0].channels == "auto"


def test_channels_of_a_huge_cluster_are_one_for_each_nic(tmp_path):
    built = cluster(tmp_path, hosts=2048, gpus=8, nic={"count": 8},
                    scenario={"channels": "auto"})
    scenario = built.topology.scenarios[0]
    assert channel_count(built.topology, scenario) == 8
    # In 2D each of the eight GPUs sends by a NIC of its own on every channel.
    in_2d = scenario.model_copy(update={"allreduce": "2d"})
    assert channel_count(built.topology, in_2d) == 1
