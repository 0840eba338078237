"""Three models of a pipeline agree: fluid phases, every piece, and a recurrence."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.protocol import Protocol
from harp.collectives.registry import make_plan
from harp.collectives.window import Window
from sim.network.flow.collective_steps import run_steps
from sim.network.flow.flow_communicator import FlowCommunicator
from sim.network.flow.fluid import Fluid
from sim.network.flow.timed_fluid import TimedFluid
from sim.network.message_paths import Paths
from sim.records.timeline_track import Timeline
from tests.support.max_plus import Pipe, arrivals
from tests.support.sim_runs import route_over

RINGS = ("ring", "reduce-scatter", "allgather")
TREES = ("tree", "broadcast")
SLOT_BYTES = 1000


class Mesh:
    """A transport whose edges share nothing: each pair of ranks has its own rate and latency."""

    def __init__(self, rate, alpha_s, message_s):
        self.rate, self.alpha_s, self.message_s = rate, alpha_s, message_s
        self.capacity = np.full(1, 1e18)
        self.cluster = SimpleNamespace(capacities=lambda _: self.capacity)
        self.stack = None
        self.links = SimpleNamespace(key=b"")
        self.style = SimpleNamespace(routing="ecmp", congestion=None)

    @classmethod
    def uneven(cls, ranks, seed):
        random = np.random.default_rng(seed)
        shape = ranks, ranks
        return cls(10 ** random.uniform(7, 10, shape), 10 ** random.uniform(-7, -4, shape),
                   random.choice([0.0, 1e-7, 1e-5]) * random.random(shape))

    @classmethod
    def hosts(cls, hosts, gpus, *, inner_s, outer_s, rate=1e15):
        """Hosts in a row, with one latency inside and one between."""
        host = np.arange(hosts * gpus) // gpus
        alpha_s = np.where(host[:, None] == host, inner_s, outer_s)
        return cls(np.full(alpha_s.shape, rate), alpha_s, np.zeros(alpha_s.shape))

    def paths(self, src, dst, channel=0):
        edge = np.arange(len(src))
        return Paths(edge, np.zeros(len(src), np.int64), np.ones(len(src)),
                     self.alpha_s[src, dst], self.message_s[src, dst], self.rate[src, dst],
                     np.zeros(len(src), bool))


def fluid_s(plan, mesh, window):
    env = simpy.Environment()
    comm = FlowCommunicator(mesh, TimedFluid(env, mesh.capacity))
    line = Timeline(env, lambda _: None, "collective")
    ranks = np.arange(plan.ranks)
    protocol = Protocol("any", 1.0, window, 1.0)
    env.run(env.process(comm.run(plan, [ranks], lambda _: 0.0, line, protocol=protocol)))
    return env.now


def steps_s(plan, mesh, window):
    net = Fluid(mesh.capacity)
    return run_steps(plan, net, route_over(mesh, net, np.arange(plan.ranks)), window).end_s


def oracle_s(plan, mesh, window):
    (phase,) = plan.phases()
    pieces, lag, _ = window.cut(phase)
    order = np.argsort(phase.feeds.level, kind="stable")
    place = np.argsort(order)
    before = [[] for _ in order]
    for source, target in zip(phase.feeds.source, phase.feeds.target, strict=True):
        before[place[target]].append(int(place[source]))
    src, dst = phase.src[order], phase.dst[order]
    busy_s = (mesh.message_s[src, dst]
              + phase.bytes_per_edge[order] / pieces / mesh.rate[src, dst])
    return arrivals(Pipe(mesh.alpha_s[src, dst], busy_s, before, pieces, lag, window.slots)).max()


windows = st.builds(Window, slots=st.integers(2, 9), slot_bytes=st.just(SLOT_BYTES))


@given(st.integers(2, 9), st.integers(1, 20_000), st.integers(0, 10**6), windows,
       st.sampled_from(RINGS))
@settings(max_examples=80, deadline=None)
def test_a_ring_is_the_recurrence_and_its_phase_is_near(ranks, elements, seed, window, name):
    plan, mesh = make_plan(name, ranks=ranks, nbytes=4 * elements), Mesh.uneven(ranks, seed)
    exact_s = oracle_s(plan, mesh, window)
    assert steps_s(plan, mesh, window) == pytest.approx(exact_s, rel=1e-9)
    assert 0.7 * exact_s <= fluid_s(plan, mesh, window) <= 2 * exact_s


@given(st.integers(2, 12), st.integers(1, 5_000), st.integers(0, 10**6), windows,
       st.sampled_from(TREES))
@settings(max_examples=60, deadline=None)
def test_a_tree_is_the_recurrence_and_its_phase_is_near(ranks, elements, seed, window, name):
    plan = make_plan(name, ranks=ranks, nbytes=4 * elements, chunk_bytes=SLOT_BYTES)
    mesh = Mesh.uneven(ranks, seed)
    exact_s = oracle_s(plan, mesh, window)
    assert steps_s(plan, mesh, window) == pytest.approx(exact_s, rel=1e-9)
    assert 0.7 * exact_s <= fluid_s(plan, mesh, window) <= 2 * exact_s


@given(st.integers(1, 5), st.integers(1, 8), st.sampled_from(RINGS))
@settings(max_examples=60, deadline=None)
def test_a_short_flat_ring_pays_for_its_crossings(hosts, gpus, name):
    """Not for the slowest edge in every step: (steps - crossings) * inner + crossings * outer."""
    inner_s, outer_s, ranks = 1e-6, 50e-6, max(hosts * gpus, 2)
    mesh = Mesh.hosts(hosts, -(-ranks // hosts), inner_s=inner_s, outer_s=outer_s)
    plan = make_plan(name, ranks=ranks, nbytes=4 * ranks)
    crossings = -(-plan.steps // gpus) if hosts > 1 else 0
    wanted_s = crossings * outer_s + (plan.steps - crossings) * inner_s
    assert steps_s(plan, mesh, Window()) == pytest.approx(wanted_s, rel=1e-6)
    assert fluid_s(plan, mesh, Window()) == pytest.approx(wanted_s, rel=1e-6)


def test_few_slots_make_a_short_ring_wait_for_its_crossings():
    """A slot is free when its piece has crossed: 30 steps of 2 slots are 15 crossings, not 2."""
    mesh = Mesh.hosts(2, 8, inner_s=1e-6, outer_s=50e-6)
    plan, window = make_plan("ring", ranks=16, nbytes=64), Window(slots=2)
    assert steps_s(plan, mesh, window) == pytest.approx(15 * 50e-6, rel=0.03)
    assert fluid_s(plan, mesh, window) == pytest.approx(steps_s(plan, mesh, window), rel=0.03)


@pytest.mark.parametrize("megabytes", [1, 64])
def test_long_messages_hide_the_latency_of_a_ring(megabytes):
    """Bytes take 2 * 15 / 16 * S / B; of 30 latencies of 50 us one is left, or a few."""
    nbytes, rate = megabytes << 20, 1e8
    mesh = Mesh.hosts(16, 1, inner_s=0.0, outer_s=50e-6, rate=rate)
    plan = make_plan("ring", ranks=16, nbytes=nbytes)
    bytes_s = 2 * 15 / 16 * nbytes / rate
    found = fluid_s(plan, mesh, Window())
    assert found == pytest.approx(steps_s(plan, mesh, Window()), rel=1e-9)
    assert found == pytest.approx(bytes_s + (30 if megabytes == 1 else 1) * 50e-6, rel=1e-3)


def test_a_window_holds_back_what_a_long_way_needs():
    """4 pieces of 500 KB under way at most, 10 ms there: 200 MB/s however fast the link."""
    mesh = Mesh.hosts(2, 1, inner_s=0.0, outer_s=10e-3, rate=1e12)
    plan = make_plan("tree", ranks=2, nbytes=400_000_000, chunk_bytes=500_000)
    window = Window(slots=4, slot_bytes=500_000)
    found = fluid_s(plan, mesh, window)
    assert found == pytest.approx(steps_s(plan, mesh, window), rel=0.02)
    assert found == pytest.approx(200e6 / 200e6, rel=0.03)


@pytest.mark.parametrize("name", ["halving-doubling", "alltoall"])
def test_lock_step_stays_where_the_algorithm_has_it(name):
    """A rank goes on when its own sends and receives are done: no window, no pieces."""
    mesh = Mesh.hosts(4, 2, inner_s=1e-6, outer_s=50e-6)
    plan = make_plan(name, ranks=8, nbytes=1 << 20)
    assert all(Window().cut(phase).pieces == 1 for phase in plan.phases())
    assert steps_s(plan, mesh, Window(2, 100)) == steps_s(plan, mesh, Window())
    assert fluid_s(plan, mesh, Window()) == pytest.approx(steps_s(plan, mesh, Window()), rel=1e-6)


@given(st.integers(2, 30), st.integers(1, 10**6), st.data())
@settings(max_examples=40, deadline=None)
def test_a_ring_whose_slowest_edge_is_slowest_in_all_is_exact(ranks, elements, data):
    mesh = Mesh.uneven(ranks, 1)
    mesh.rate[:], mesh.alpha_s[:], mesh.message_s[:] = 1e9, 5e-6, 1e-6
    slow = data.draw(st.integers(0, ranks - 1))
    mesh.rate[slow], mesh.alpha_s[slow] = data.draw(st.floats(1e6, 9e8)), 10e-6
    plan = make_plan(data.draw(st.sampled_from(RINGS)), ranks=ranks, nbytes=4 * elements)
    assert fluid_s(plan, mesh, Window()) == pytest.approx(steps_s(plan, mesh, Window()), rel=1e-6)
