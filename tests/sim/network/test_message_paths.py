"""Times of a message beside its bytes: frames that links take whole, bursts, turns at both ends.

Fidelity packet is the oracle: nothing of what it does with a frame is known to fidelity flow.
"""

from __future__ import annotations

import numpy as np
import pytest

from sim.cluster.cluster import Cluster
from sim.network.message_paths import Stages
from sim.network.transport import Style, Transport
from sim.schema import load
from sim.schema.parameters import load_stack
from sim.validation.fidelities import FILE, Case, pattern, run_case
from tests.sim.answer.test_collective_bench import measured, timer
from tests.support.cluster_files import ALPHA_S, RATE_BPS, cluster

KIB = 1 << 10
NEAR, ACROSS = 1, 4
"""Hosts that host 0 reaches over one switch and over three."""
TCP = "scenarios[0].stack=kernel-tcp"


def both_s(far: int, nbytes: int, changes: tuple[str, ...]) -> list[float]:
    """A message on an empty path at flow and at packet, over a connection that is open."""
    case = Case("one message", pattern([0], [far], nbytes), changes)
    made = Cluster(load(FILE, changes))
    return [run_case(made, case, fidelity).times_s[-1] for fidelity in ("flow", "packet")]


@pytest.mark.parametrize("far", [NEAR, ACROSS], ids=["2 links", "4 links"])
@pytest.mark.parametrize("changes", [
    (), ("fabric.mtu=1500B",), ("fabric.rate=100Gbps",), ("fabric.rate=10Gbps",),
    ("hosts[0].nics[0].rate=100Gbps", "fabric.rate=400Gbps"), (TCP,),
    (TCP, "fabric.mtu=1500B"), (TCP, "fabric.rate=10Gbps"),
    (TCP, "hosts[0].nics[0].rate=100Gbps", "fabric.rate=400Gbps"),
], ids=", ".join)
def test_a_message_on_an_empty_path_takes_as_long_as_its_packets(changes, far):
    """Within 4 %, where a third was missing without frames, bursts and the receiver's turn."""
    for nbytes in (512, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB):
        flow_s, packet_s = both_s(far, nbytes, changes)
        assert flow_s == pytest.approx(packet_s, rel=0.04), nbytes


@pytest.mark.parametrize("tiers", [1, 2, 3])
def test_six_links_take_five_frames_more(tmp_path, tiers):
    """All-to-all of two hosts: 2, 4 and 6 links of one rate, and a switch between any two."""
    fabric = {1: {"template": "single-switch"},
              2: {"template": "leaf-spine", "leaves": 2, "spines": 1},
              3: {"template": "clos3", "pods": 2, "leaves": 1, "aggs": 1, "cores": 1}}[tiers]
    rate = f"{RATE_BPS!r}bps"
    fabric |= {"latency": "0s", "mtu": "9000B", "rate": rate}
    clock, size = timer(tmp_path, hosts=2, fabric=fabric), 1 << 20
    frame_s = 9000 * 8 / RATE_BPS
    found = measured(clock, "alltoall", 2, [size])[0]
    assert found == pytest.approx(
        ALPHA_S + size / 2 * 8 / RATE_BPS + (2 * tiers - 1) * frame_s, rel=1e-5)


def test_a_ring_pays_a_frame_a_step_as_long_as_its_messages_are_short(tmp_path):
    """2 (n - 1) times alpha, the frame and the message; of long ones only the first frame shows."""
    fabric = {"template": "single-switch", "latency": "0s", "mtu": "9000B"}
    clock = timer(tmp_path, hosts=8, fabric=fabric)
    short, long = measured(clock, "ring", 8, [8 * 9000, 1 << 30])
    frame_s = 9000 * 8 / RATE_BPS
    assert short == pytest.approx(14 * (ALPHA_S + 2 * frame_s), rel=0.01)
    assert long == pytest.approx(14 / 8 * (1 << 30) * 8 / RATE_BPS + ALPHA_S + frame_s, rel=1e-4)


def last_frame_s(stage_s, units, frame, frames):
    """When the last of some frames has passed stages that each take whole units, one by one."""
    ready = np.zeros(frames)
    for seconds, unit in zip(stage_s, units, strict=True):
        free = 0.0
        for first in range(0, frames, unit):
            last = min(first + unit, frames)
            free = max(free, ready[last - 1]) + (last - first) * frame * seconds
            ready[first:last] = free
    return ready[-1]


@pytest.mark.parametrize("stage_s", [
    (3.0, 1.0, 1.0, 2.0), (1.0, 3.0, 2.0, 1.0), (1.0, 1.0, 2.0, 3.0), (2.0, 2.0, 2.0, 2.0)])
@pytest.mark.parametrize("burst", [1, 7])
def test_stages_are_those_of_the_recurrence(stage_s, burst):
    """A sender, two links and a receiver, whichever is slowest; full bursts."""
    frame, frames = 100.0, 21
    sender, *links, receiver = (np.array([seconds]) for seconds in stage_s)
    stages = Stages(frame, burst * frame, sender, sum(links), np.maximum(*links), receiver)
    whole_s = frames * frame * max(stage_s) + stages.forwarding_s(np.array([frames * frame]))[0]
    assert whole_s == pytest.approx(last_frame_s(stage_s, (burst, 1, 1, 1), frame, frames))


def test_messages_inside_a_host_pass_no_stage(tmp_path):
    made = cluster(tmp_path, hosts=2, gpus=2)
    transport = Transport(made, load_stack("ideal", made.topology.stacks), Style())
    inside, outside = transport.paths([0, 0], [1, 2]).stages.forwarding_s(np.full(2, 1e6))
    assert inside == 0.0
    assert outside > 0.0
