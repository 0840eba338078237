"""Switches that add, by the figures of NCCL's table: loops, channels, rates."""

from __future__ import annotations

import numpy as np
import pytest

from sim.network.nvls import loops_of, nvls_plan
from tests.sim.network.switched_hosts import nvidias, switched


@pytest.mark.parametrize(("nbytes", "machines", "loops"), [
    (64 << 20, 1, 8), (64 << 10, 1, 1), (16 << 30, 1, 1024),
    (8 << 20, 2, 1), (32 << 20, 2, 4), (64 << 20, 3, 4), (64 << 20, 4, 8)])
def test_nvls_goes_in_loops_of_a_chunk_of_each_shard_on_each_channel(nbytes, machines, loops):
    """Of 16 channels and eight shards; chunks of 16 to 128 KiB, of 64 at most over four hosts."""
    assert loops_of(nbytes, machines, 8, 0.85) == loops


def test_a_switch_waits_for_one_loop_more(tmp_path):
    built = switched(tmp_path, hosts=1)
    assert nvidias(built, 64 << 20).busbw / nvidias(built, 8 << 30).busbw == pytest.approx(
        8 / 9, rel=0.02)


def test_nvls_uses_16_channels_of_however_many(tmp_path):
    """Each channel has messages of its own, and they take the proxy thread time."""
    times = [nvidias(switched(tmp_path, scenario={"channels": channels})).time_s
             for channels in (16, 32)]
    assert times[0] == times[1]


@pytest.mark.parametrize(("model", "gpus", "share"), [
    ("H100", 8, 0.85), ("H20", 5, 0.85), ("B200", 8, 0.74)])
def test_the_switch_adds_and_a_link_carries_each_byte_once_and_a_shard(tmp_path, model, gpus,
                                                                       share):
    """S + S / n each way, at the share of a ring's rate that NCCL's table has."""
    row = nvidias(switched(tmp_path, model, hosts=1, gpus=gpus))
    assert row.choice == "nvls Simple"
    assert row.algbw / 1e9 == pytest.approx(share * 360 / (1 + 1 / gpus), rel=0.01)


@pytest.mark.parametrize(("model", "gpus"), [("A100", 8), ("H100", 2), ("H100", 3)])
def test_without_sharp_or_with_few_gpus_a_ring_is_faster(tmp_path, model, gpus):
    assert nvidias(switched(tmp_path, model, hosts=1, gpus=gpus)).choice.startswith("ring")


@pytest.mark.parametrize(("hosts", "gigabytes"), [(2, 0.85 * 360 / 1.125), (4, 200.0)])
def test_between_hosts_each_gpu_sends_its_shard_over_its_own_nic(tmp_path, hosts, gigabytes):
    """Two hosts: the switches bound it; four: a NIC of 50 GB/s carries an eighth, twice."""
    row = nvidias(switched(tmp_path, hosts=hosts))
    assert row.choice == "nvlstree Simple"
    assert row.algbw / 1e9 == pytest.approx(gigabytes, rel=0.02)


def test_the_switches_of_thousands_of_gpus_are_one_flow_a_channel(tmp_path):
    """Every edge passes on what came to its rank before it, and nothing else."""
    phase = next(nvls_plan(4096, 8, 1 << 30, 4, 0.85).phases())
    feeds = phase.feeds
    assert (phase.dst[feeds.source] == phase.src[feeds.target]).all()
    assert (feeds.level[feeds.source] < feeds.level[feeds.target]).all()
    fed = np.isin(np.arange(len(phase.src)), feeds.target)
    assert (fed == (feeds.level > 0)).all()
