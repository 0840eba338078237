"""Collectives message by message: against a recurrence, and fluid phases against them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.registry import make_plan, plan_names
from sim.cluster import Cluster
from sim.collective import Communicator
from sim.collective_steps import Edges, route_over, run_steps
from sim.fabric.flow import FlowFabric
from sim.fabric.fluid import Fluid
from sim.schema import load
from sim.schema.parameters import load_stack
from sim.timeline import Timeline
from sim.transport import Paths, Style, Transport

TREES = ("tree", "broadcast")
RINGS = ("ring", "reduce-scatter", "allgather")
TOPOLOGY = Path(__file__).parent.parent / "topologies" / "taco-vgg16-v100-25g.yaml"


class Star:
    """A transport in which rank r sends at ``out[r]`` and receives at ``into[r]`` bytes/s."""

    def __init__(self, out, into, alpha_s, message_s=0.0):
        self.ranks = len(out)
        self.capacity = np.concatenate([out, into])
        self.alpha_s, self.message_s = alpha_s, message_s
        self.cluster = SimpleNamespace(capacities=lambda _: self.capacity)
        self.stack = None
        self.state = b""

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
                     np.full(len(edge), self.message_s), np.full(len(edge), np.inf))


def phases_s(plan, transport, capacity, gpus):
    env = simpy.Environment()
    comm = Communicator(transport, FlowFabric(env, capacity))
    line = Timeline(env, lambda _: None, "collective")
    env.run(env.process(comm.run(plan, [gpus], lambda _: 0.0, line)))
    return env.now


def steps(plan, transport, capacity, gpus):
    net = Fluid(capacity)
    return run_steps(plan, net, route_over(transport, net, gpus))


def both_s(plan, star):
    ranks = np.arange(star.ranks)
    return (phases_s(plan, star, star.capacity, ranks),
            steps(plan, star, star.capacity, ranks).end_s)


def even_plan(name, ranks, units):
    """A plan in which everything divides, so that no message is an element larger."""
    group = max(g for g in range(1, ranks + 1) if ranks % g == 0 and g * g <= ranks)
    return make_plan(name, ranks=ranks, nbytes=4 * ranks * units, group=group)


# ---- the step engine against what it should do


def ring_recurrence_s(plan, star):
    """When each rank of a ring is done: both ends of an edge wait for one another and for it."""
    ready_s, right = np.zeros(star.ranks), (np.arange(star.ranks) + 1) % star.ranks
    rank = np.arange(star.ranks)
    rate = np.minimum(star.capacity[rank], star.capacity[star.ranks + right])
    for step in range(plan.steps):
        rows = plan.step(step)
        nbytes = np.bincount(rows.src, rows.length, star.ranks)
        busy_s = np.where(nbytes > 0, star.alpha_s[rank, right] + star.message_s + nbytes / rate, 0)
        together_s = np.maximum(ready_s, ready_s[right]) + busy_s
        sent_s = np.where(nbytes > 0, together_s, ready_s)
        received_s = np.where(np.roll(nbytes, 1) > 0, np.roll(together_s, 1), ready_s)
        ready_s = np.maximum(sent_s, received_s)
    return ready_s


@given(st.integers(2, 24), st.integers(1, 10**6), st.integers(0, 99), st.sampled_from(RINGS))
@settings(max_examples=60, deadline=None)
def test_ring_is_its_recurrence(ranks, units, seed, name):
    star = Star.uneven(ranks, seed)
    plan = make_plan(name, ranks=ranks, nbytes=4 * units)
    result = steps(plan, star, star.capacity, np.arange(ranks))
    np.testing.assert_allclose(result.rank_end_s, ring_recurrence_s(plan, star), rtol=1e-9)


@pytest.mark.parametrize("name", plan_names())
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 12])
def test_every_message_is_sent_once(name, ranks):
    plan = make_plan(name, ranks=ranks, nbytes=4096, group=ranks, chunk_bytes=128)
    star = Star.uneven(ranks, 1)
    effort = steps(plan, star, star.capacity, np.arange(ranks)).effort
    pairs = [(step, *pair) for step in range(plan.steps)
             for pair in zip(plan.step(step).src.tolist(), plan.step(step).dst.tolist(),
                             strict=True)]
    assert effort.messages == len(set(pairs))


def test_steps_are_held_only_while_ranks_are_in_them():
    plan = make_plan("ring", ranks=64, nbytes=1 << 20)
    even, uneven = Star.uniform(64), Star.uneven(64, 1)
    ranks = np.arange(64)
    assert steps(plan, even, even.capacity, ranks).effort.most_held == 1
    # Neighbours are at most one step apart, so those opposite are at most half the ring apart.
    assert steps(plan, uneven, uneven.capacity, ranks).effort.most_held <= 33


def test_ranks_in_lock_step_complete_in_one_batch_a_step():
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


@given(st.integers(2, 40), st.integers(1, 10**6), st.integers(0, 99), st.sampled_from(RINGS))
@settings(max_examples=60, deadline=None)
def test_fluid_ring_is_an_upper_bound(ranks, units, seed, name):
    """Where latency and rate are worst on different edges, a phase charges for both."""
    star = Star.uneven(ranks, seed)
    fluid_s, step_s = both_s(even_plan(name, ranks, units), star)
    bytes_s = float((4 * units / star.capacity).max())
    worst = star.alpha_s.max() + bytes_s
    assert step_s * (1 - 1e-9) <= fluid_s <= 2 * (ranks - 1) * worst * (1 + 1e-9)


@pytest.mark.parametrize("ranks", [2, 3, 8, 13, 16, 30])
@pytest.mark.parametrize("name", [name for name in plan_names() if name not in TREES])
def test_even_fabric(name, ranks):
    """All edges are equal and all ranks in lock step: phases are what steps are."""
    fluid_s, step_s = both_s(even_plan(name, ranks, 1000), Star.uniform(ranks))
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
    """Ports differ by a factor of two and latencies by nine; 64 MiB, where bytes rule."""
    plan = make_plan(name, ranks=ranks, nbytes=64 << 20, group=max(1, ranks // 4)
                     if ranks % 4 == 0 else ranks)
    fluid_s, step_s = both_s(plan, Star.uneven(ranks, ranks))
    assert fluid_s == pytest.approx(step_s, rel=0.05 if name in TREES else 0.02)


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
