"""Slow start at fidelity flow: closed forms, and the segments of fidelity packet."""

from __future__ import annotations

from contextlib import closing
from math import ceil, log2

import numpy as np
import pytest
import simpy

from sim.cluster.cluster import Cluster
from sim.network.fidelity import make_network
from sim.network.flow.windows import Windows
from sim.network.interface import Site
from sim.network.transport import Style
from sim.records.timeline_track import Timeline
from sim.schema import load
from sim.schema.parameters import load_stack
from sim.validation.fidelities import FILE, pattern

SEGMENT = 1448
KIB, MIB = 1 << 10, 1 << 20


def sent_by_rounds_s(window, rate, rtt_s, nbytes):
    """Time of a transfer round by round: a window leaves at the line's rate, then its ACKs."""
    seconds = 0.0
    while nbytes > window and window < rate * rtt_s:
        seconds, nbytes, window = seconds + rtt_s, nbytes - window, 2 * window
    return seconds + nbytes / rate


@pytest.mark.parametrize("nbytes", [1, 10 * SEGMENT, 100 * SEGMENT, 1000 * SEGMENT, 64 * MIB])
@pytest.mark.parametrize("rtt_s", [0.001, 0.01, 0.04, 0.2])
@pytest.mark.parametrize("sockets", [1, 4])
def test_a_new_connection_loses_what_its_rounds_wait(nbytes, rtt_s, sockets):
    rate = 12.5e6
    windows = Windows(np.array([rtt_s]), sockets, SEGMENT)
    lost_s = windows.lost_s(np.array([float(nbytes)]), 0.0, nbytes / rate)
    rounds_s = sent_by_rounds_s(10.0 * SEGMENT * sockets, rate, rtt_s, nbytes)
    assert nbytes / rate + lost_s == pytest.approx(rounds_s, rel=1e-9, abs=1e-9)


def test_a_pause_halves_the_window_for_each_timeout():
    """Of 320 segments 80 are left after two timeouts of 240 ms, so two doublings are missing."""
    rate, rtt_s, segments = 320 * SEGMENT / 0.04, 0.04, 100_000.0
    nbytes = np.array([segments * SEGMENT])
    windows = Windows(np.array([rtt_s]), 1, SEGMENT)
    took_s = float(nbytes[0]) / rate
    lost_s = windows.lost_s(nbytes, 0.0, took_s)
    assert lost_s == pytest.approx(5 * rtt_s - 310 * SEGMENT / rate)
    start_s = took_s + lost_s
    assert windows.lost_s(nbytes, start_s + 0.1, start_s + 0.1 + took_s) == 0
    start_s += 0.1 + took_s
    lost_s = windows.lost_s(nbytes, start_s + 0.5, start_s + 0.5 + took_s)
    assert lost_s == pytest.approx(2 * rtt_s - 240 * SEGMENT / rate)


def test_a_round_that_fills_little_of_its_window_opens_it_no_further():
    """46 segments leave as 10, 20 and 16 of 40; the next 46 as 40 and 6."""
    rate, rtt_s, nbytes = 125e6, 0.04, np.array([46.0 * SEGMENT])
    windows = Windows(np.array([rtt_s]), 1, SEGMENT)
    took_s = float(nbytes[0]) / rate
    assert windows.lost_s(nbytes, 0.0, took_s) == pytest.approx(2 * rtt_s - 30 * SEGMENT / rate)
    assert windows.lost_s(nbytes, 0.2, 0.2 + took_s) == pytest.approx(rtt_s - 40 * SEGMENT / rate)


def test_bbr_keeps_its_window_over_a_pause():
    windows = Windows(np.array([0.04]), 1, SEGMENT, begins_anew=False)
    nbytes = np.array([64.0 * MIB])
    windows.lost_s(nbytes, 0.0, 5.0)
    assert windows.lost_s(nbytes, 1000.0, 1005.0) == 0


def test_nearby_nothing_is_lost():
    windows = Windows(np.array([100e-6, 0.0]), 1, SEGMENT)
    assert windows.lost_s(np.array([64.0 * MIB, 64.0 * MIB]), 0.0, 0.1) == 0


def took_s(fidelity, changes, transfers):
    """Send messages one after the other, each after a pause; the time that each took."""
    cluster = Cluster(load(FILE, changes))
    (scenario,) = cluster.topology.scenarios
    env = simpy.Environment()
    network = make_network(fidelity, env, Site(
        cluster, load_stack(scenario.stack, cluster.topology.stacks),
        Style.of(scenario, cluster.topology), names_limits=False))
    found = []
    with closing(network):
        communicator = network.communicator()
        for pause_s, nbytes in transfers:
            env.run(env.timeout(pause_s))
            start_s, plan = env.now, pattern([0], [1], nbytes)(cluster.gpus, 1)
            env.run(env.process(communicator.run(
                plan, [np.arange(cluster.gpus)], lambda _: 0.0,
                Timeline(env, lambda _: None, "test"))))
            found.append(env.now - start_s)
    return found


@pytest.mark.parametrize("rtt_s", [0.01, 0.04])
@pytest.mark.parametrize(("rate", "nbytes"), [
    *((rate, nbytes) for rate in ("100Mbps", "1Gbps") for nbytes in (64 * KIB, 256 * KIB, MIB)),
    ("100Mbps", 8 * MIB)])
def test_segments_take_as_long(rtt_s, rate, nbytes):
    """A new connection's transfer, and those after pauses of 0.1, 0.5 and 5 seconds."""
    changes = ("scenarios[0].stack=kernel-tcp", f"hosts[0].nics[0].rate={rate}",
               f"fabric.latency={rtt_s / 4 * 1e6:g}us", "fabric.mtu=1500B")
    transfers = [(0.0, 1), (0.1, nbytes), (0.1, nbytes), (0.5, nbytes), (5.0, nbytes)]
    flow, packet = (took_s(fidelity, changes, transfers)[1:] for fidelity in ("flow", "packet"))
    assert flow == pytest.approx(packet, rel=0.1)


@pytest.mark.parametrize("nbytes", [200_000, MIB])
@pytest.mark.parametrize("rtt_s", [0.02, 0.04, 0.08])
def test_a_new_session_of_harp_opens_its_window_as_fast_as_tcp(rtt_s, nbytes):
    """Its first timeout, of 10 ms, comes before its first ACK on such paths."""
    harp_s, tcp_s = (took_s("packet", (
        f"scenarios[0].stack={stack}", "hosts[0].nics[0].rate=100Mbps",
        f"fabric.latency={rtt_s / 4 * 1e6:g}us", "fabric.mtu=1500B"), [(0.0, 1), (0.1, nbytes)])[1]
        for stack in ("harp", "kernel-tcp"))
    assert harp_s <= 1.1 * tcp_s


def test_a_kilobyte_takes_one_way_and_a_megabyte_its_doublings():
    """Published: lg (n / 10 + 1) - 1/2 round trips, as Cardwell et al. have it."""
    changes = ("scenarios[0].stack=kernel-tcp", "hosts[0].nics[0].rate=100Gbps",
               "fabric.rate=400Gbps", "fabric.latency=10ms", "fabric.mtu=1500B")
    for segments in (1, 9, 100, 700):
        found = took_s("flow", changes, [(0.0, segments * SEGMENT)])[0]
        assert found == pytest.approx((ceil(log2(segments / 10 + 1)) - 0.5) * 0.04, rel=0.05)
