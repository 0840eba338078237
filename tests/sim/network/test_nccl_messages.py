"""Messages as a process with one thread for them makes them: how many, and what they cost."""

from __future__ import annotations

import pytest

from sim.answer.collective_bench import measure
from tests.support.cluster_files import IDEAL, cluster

KIB, MIB = 1 << 10, 1 << 20
MESSAGE_S = 10e-6
PROXY = IDEAL | {"cost_per_message": f"{MESSAGE_S}s", "start_latency": "0s"}
"""A stack with a cost per message only; the NIC moves the bytes."""


@pytest.mark.parametrize(("nbytes", "sockets"), [
    (128 * KIB, 1), (512 * KIB, 2), (2 * MIB, 8), (32 * MIB, 16)])
def test_short_messages_leave_sockets_idle(tmp_path, nbytes, sockets):
    """A step of half the bytes is two messages, each cut into parts of 64 KiB or more."""
    free = {"base": "kernel-tcp", "cost_per_byte": "0s", "cost_per_packet": "0s",
            "cost_per_message": "0s", "start_latency": "0s", "flow_rate": "1000Tbps",
            "memory_per_byte": 0, "headers": "0B", "deviation": 1.0, "launch": "0s"}
    built = cluster(tmp_path, nic={"driver": "ena"}, stacks={"free": free},
                    vpc={"vnics": 1, "flow_rate": "1Gbps"}, scenario={"stack": "free"})
    row = measure(built, "allreduce", [nbytes], scenario=built.topology.scenarios[0],
                  algorithms=["ring"]).rows[0]
    assert row.busbw == pytest.approx(sockets * 1e9 / 8, rel=0.1)


def seconds(folder, algorithm, nbytes, **given):
    built = cluster(folder, stacks={"ideal": PROXY}, **given)
    return measure(built, "allreduce", [nbytes], algorithms=[algorithm]).rows[0].time_s


@pytest.mark.parametrize("channels", [1, 4, 16])
def test_messages_of_all_channels_queue_for_the_thread_of_their_process(tmp_path, channels):
    """Three hosts of eight: a process at the edge of its host sends two slices in 46 steps.

    As published of GKE (gke-a3-3-hosts): a ring takes the same time from 256 KiB to 8 MiB, and in
    proportion to its channels below.
    """
    took_s = seconds(tmp_path, "ring", 2 * MIB, hosts=3, gpus=8, rate_bps=1e15,
                     scenario={"channels": channels})
    assert took_s == pytest.approx(46 * 2 * channels * MESSAGE_S, rel=0.15)


def test_a_process_that_sends_and_receives_handles_both(tmp_path):
    """With one GPU a host the same process sends and receives; with two, each does one of them."""
    single, double = (seconds(tmp_path, "ring", 64 * KIB, hosts=2, gpus=gpus, rate_bps=1e15)
                      / (2 * (2 * gpus - 1)) for gpus in (1, 2))
    assert single == pytest.approx(2 * double, rel=0.15)


def test_bytes_that_others_move_hide_the_messages(tmp_path):
    """The NIC moves 256 MiB in 21.5 ms; 256 messages of 10 us are handled meanwhile."""
    bytes_s = 256 * MIB / 12.5e9
    took_s = seconds(tmp_path, "ring", 256 * MIB, hosts=2)
    assert bytes_s <= took_s <= 1.03 * bytes_s


def test_a_thread_that_moves_the_bytes_itself_pays_for_both(tmp_path):
    moves = PROXY | {"cost_per_byte": "0.1ns"}
    built = cluster(tmp_path, stacks={"ideal": moves}, hosts=2)
    took_s = measure(built, "allreduce", [256 * MIB], algorithms=["ring"]).rows[0].time_s
    # Of 32 threads, so that messages are what is left: 256 of them each way.
    assert took_s > 256 * MIB / 12.5e9 + 0.9 * 2 * 256 * MESSAGE_S
