"""Collectives piece by piece on shared ports, and fluid phases against them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.registry import make_plan, plan_names
from harp.collectives.window import NCCL_WINDOW, Window
from sim.cluster.cluster import Cluster
from sim.network.flow.collective_steps import Edges, run_steps
from sim.network.flow.flow_communicator import FlowCommunicator
from sim.network.flow.fluid import Fluid
from sim.network.flow.timed_fluid import TimedFluid
from sim.network.message_paths import Paths
from sim.network.transport import Style, Transport
from sim.records.timeline_track import Timeline
from sim.schema import load
from sim.schema.parameters import load_stack
from tests.support import ROOT
from tests.support.sim_runs import route_over

TREES = ("tree", "broadcast")
RINGS = ("ring", "reduce-scatter", "allgather")
TOPOLOGY = ROOT / "topologies" / "taco-vgg16-v100-25g.yaml"


class Star:
    """A transport in which rank r sends at ``out[r]`` and receives at ``into[r]`` bytes/s."""

    def __init__(self, out, into, alpha_s, message_s=0.0):
        self.ranks = len(out)
        self.capacity = np.concatenate([out, into])
        self.alpha_s, self.message_s = alpha_s, message_s
        self.cluster = SimpleNamespace(capacities=lambda _: self.capacity)
        self.stack = None
        self.links = SimpleNamespace(key=b"")
        self.style = SimpleNamespace(routing="ecmp", congestion=None)

    @classmethod
    def uniform(cls, ranks, message_s=0.0):
        return cls(np.full(ranks, 1e9), np.full(ranks, 1e9), np.full((ranks, ranks), 5e-6),
                   message_s)

    @classmethod
    def uneven(cls, ranks, seed):
        random = np.random.default_rng(seed)
        return cls(random.uniform(5e8, 1e9, ranks), random.uniform(5e8, 1e9, ranks),
                   random.uniform(1e-6, 9e-6, (ranks, ranks)))

    def paths(self, src, dst, channel=0):
        edge = np.arange(len(src))
        return Paths(np.tile(edge, 2), np.concatenate([src, self.ranks + dst]).astype(np.int64),
                     np.ones(2 * len(edge)), self.alpha_s[src, dst],
                     np.full(len(edge), self.message_s), np.full(len(edge), np.inf),
                     np.zeros(len(edge), bool))


def phases_s(plan, transport, capacity, gpus):
    env = simpy.Environment()
    comm = FlowCommunicator(transport, TimedFluid(env, capacity))
    line = Timeline(env, lambda _: None, "collective")
    env.run(env.process(comm.run(plan, [gpus], lambda _: 0.0, line)))
    return env.now


def steps(plan, transport, capacity, gpus, window=NCCL_WINDOW):
    net = Fluid(capacity)
    return run_steps(plan, net, route_over(transport, net, gpus), window)


def both_s(plan, star):
    ranks = np.arange(star.ranks)
    return (phases_s(plan, star, star.capacity, ranks),
            steps(plan, star, star.capacity, ranks).end_s)


def even_plan(name, ranks, units):
    """A plan in which everything divides, so that no message is an element larger."""
    group = max(g for g in range(1, ranks + 1) if ranks % g == 0 and g * g <= ranks)
    return make_plan(name, ranks=ranks, nbytes=4 * ranks * units, group=group)


# ---- the step engine against what it should do; its recurrence is in test_collective_contract


@pytest.mark.parametrize("name", plan_names())
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 12])
def test_every_piece_is_sent_once(name, ranks):
    plan = make_plan(name, ranks=ranks, nbytes=4096, group=ranks, chunk_bytes=128)
    star, window = Star.uneven(ranks, 1), Window(slots=4, slot_bytes=100)
    pieces = steps(plan, star, star.capacity, np.arange(ranks), window).effort.pieces
    assert pieces == sum(len(phase.src) * window.cut(phase).pieces
                         for phase in plan.phases() if phase.local is None)


def test_stages_are_held_only_while_ranks_are_in_them():
    plan = make_plan("halving-doubling", ranks=64, nbytes=1 << 20)
    even, uneven = Star.uniform(64), Star.uneven(64, 1)
    ranks = np.arange(64)
    assert steps(plan, even, even.capacity, ranks).effort.most_held == 1
    assert steps(plan, uneven, uneven.capacity, ranks).effort.most_held <= 7


def test_equal_ranks_complete_in_one_batch_a_step():
    plan = make_plan("ring", ranks=50, nbytes=4 * 50 * 100)
    star = Star.uniform(50)
    assert steps(plan, star, star.capacity, np.arange(50)).effort.batches == plan.steps


def test_messages_of_a_sender_queue_for_its_stack():
    plan = make_plan("alltoall", ranks=5, nbytes=20)
    star = Star.uniform(5, message_s=1e-3)
    assert steps(plan, star, star.capacity, np.arange(5)).end_s == pytest.approx(4e-3, rel=0.01)


def test_it_starts_when_the_network_is():
    plan, star = make_plan("ring", ranks=4, nbytes=4096), Star.uniform(4)
    net = Fluid(star.capacity)
    first = run_steps(plan, net, route_over(star, net, np.arange(4)))
    second = run_steps(plan, net, route_over(star, net, np.arange(4)))
    assert second.end_s == pytest.approx(2 * first.end_s)


def test_a_dead_port_is_an_error():
    star = Star(np.array([1e9, 0.0]), np.full(2, 1e9), np.zeros((2, 2)))
    with pytest.raises(RuntimeError, match="down"):
        steps(make_plan("ring", ranks=2, nbytes=64), star, star.capacity, np.arange(2))


def test_an_unknown_route_is_an_error():
    def lost(src, dst):
        return Edges(np.full(len(src), 7, np.int32), *np.zeros((3, len(src))) + 1)
    with pytest.raises(ValueError, match="route"):
        run_steps(make_plan("ring", ranks=2, nbytes=64), Fluid([1.0]), lost)


# ---- fluid phases against the steps


@given(st.integers(2, 40), st.integers(1, 10**6), st.data())
@settings(max_examples=60, deadline=None)
def test_fluid_ring_has_the_pace_of_its_slowest_edge(ranks, units, data):
    """One edge is slowest in rate and latency: phases and steps agree to 1e-6."""
    star = Star.uneven(ranks, 1)
    slow = data.draw(st.integers(0, ranks - 1))
    star.capacity[slow] = data.draw(st.floats(1e6, 4e8))
    star.alpha_s[slow, (slow + 1) % ranks] = data.draw(st.floats(9e-6, 1e-3))
    fluid_s, step_s = both_s(even_plan(data.draw(st.sampled_from(RINGS)), ranks, units), star)
    assert fluid_s == pytest.approx(step_s, rel=1e-6)


@pytest.mark.parametrize("ranks", [2, 3, 8, 13, 16, 30])
@pytest.mark.parametrize("name", [name for name in plan_names() if name not in TREES])
def test_even_fabric(name, ranks):
    """All edges are equal and all ranks in lock step: phases are what steps are."""
    fluid_s, step_s = both_s(even_plan(name, ranks, 1024), Star.uniform(ranks))
    assert fluid_s == pytest.approx(step_s, rel=1e-6)


@pytest.mark.parametrize("ranks", [2, 3, 8, 13, 16, 30])
@pytest.mark.parametrize("name", TREES)
def test_even_fabric_trees(name, ranks):
    """A pipeline of many chunks: a step ends with its slowest chunk, which costs up to 7 %."""
    plan = make_plan(name, ranks=ranks, nbytes=64 << 20)
    fluid_s, step_s = both_s(plan, Star.uniform(ranks))
    assert fluid_s == pytest.approx(step_s, rel=0.07)


@pytest.mark.parametrize("ranks", [3, 8, 13, 30])
@pytest.mark.parametrize("name", plan_names())
def test_uneven_fabric(name, ranks):
    """Ports differ by a factor of two and latencies by nine; 64 MiB, where bytes rule.

    Trees in one group are chains, whose edges wait for the slowest of thirteen or more ports. Where
    whole buffers are exchanged a phase waits for the slowest pair, a rank for its own one alone.
    """
    plan = make_plan(name, ranks=ranks, nbytes=64 << 20, group=max(1, ranks // 4)
                     if ranks % 4 == 0 else ranks)
    fluid_s, step_s = both_s(plan, Star.uneven(ranks, ranks))
    is_loose = name in (*TREES, "recursive-doubling")
    assert fluid_s == pytest.approx(step_s, rel=0.08 if is_loose else 0.02)


@pytest.mark.parametrize("name", ["ring", "2d", "halving-doubling", "alltoall"])
def test_a_real_cluster(name):
    """Two hosts of the shipped topology: caps, cores and NVLink as the training jobs see them."""
    topology = load(TOPOLOGY)
    cluster, stack = Cluster(topology), load_stack("kernel-tcp", topology.stacks)
    transport = Transport(cluster, stack, Style())
    capacity, gpus = cluster.capacities(stack), np.arange(16)
    plan = make_plan(name, ranks=16, nbytes=16 << 20, group=8)
    fluid_s = phases_s(plan, transport, capacity, gpus)
    step_s = steps(plan, transport, capacity, gpus).end_s
    assert fluid_s == pytest.approx(step_s, rel=0.01)
