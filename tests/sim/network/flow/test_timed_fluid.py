"""Flow sets as simpy events: they end when the engine says, whatever happens in between."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.network.flow.fluid import Fluid
from sim.network.flow.timed_fluid import TimedFluid, TokenBucket
from tests.support.levels import draws


class Log:
    """A fabric whose resources are routes as well, and the times at which sets of flows ended."""

    def __init__(self, capacity, **options):
        self.env = simpy.Environment()
        self.fabric = TimedFluid(self.env, capacity, **options)
        self.fabric.net.add_routes(np.arange(len(capacity) + 1), np.arange(len(capacity)))
        self.ended = {}

    def move(self, name, routes, amounts, *, at_s=0.0, **options):
        self.env.process(self._move(name, at_s, routes, amounts, options))

    def _move(self, name, at_s, routes, amounts, options):
        yield self.env.timeout(at_s)
        yield self.fabric.move(routes, amounts, **options).done
        self.ended[name] = self.env.now

    def at(self, seconds, action, *args):
        def process():
            yield self.env.timeout(seconds)
            action(*args)
        self.env.process(process())

    def run(self):
        self.env.run()
        return self.ended


def test_a_set_ends_with_its_last_flow():
    log = Log([10.0, 10.0])
    log.move("a", [0, 1], [10.0, 30.0])
    assert log.run() == pytest.approx({"a": 3.0})


def test_sets_share_a_resource_fairly():
    """Both at 5/s till b is done at 4 s; a has 20 left and the whole resource."""
    log = Log([10.0])
    log.move("a", 0, 40.0)
    log.move("b", 0, 20.0)
    assert log.run() == pytest.approx({"a": 6.0, "b": 4.0})


def test_a_set_of_no_flows_ends_at_once():
    log = Log([10.0])
    log.move("none", np.empty(0, np.int32), np.empty(0), at_s=2.0)
    log.move("nothing", 0, 0.0, at_s=3.0)
    assert log.run() == {"none": 2.0, "nothing": 3.0}


def test_capacity_that_changes():
    """10 by 1 s, nothing until 3 s, then the other 10 at 2/s."""
    log = Log([10.0])
    log.move("a", 0, 20.0)
    log.at(1.0, log.fabric.change, 0, 0.0)
    log.at(3.0, log.fabric.change, 0, 2.0)
    assert log.run() == pytest.approx({"a": 8.0})


def test_flows_that_are_put_on_another_route():
    log = Log([10.0, 5.0])

    def away():
        running = log.fabric.running(flows)
        assert running.tolist() == [False, True]
        log.fabric.reroute(flows.flows[running], 1)

    flows = log.fabric.move([0, 0], [5.0, 20.0])
    log.at(1.0 + 0.5, away)
    log.at(1.5, log.fabric.change, 0, 0.0)
    log.env.run(flows.done)
    # 5 units of both by 1 s, 5 more of the second by 1.5 s, and its last 10 at 5/s.
    assert log.env.now == pytest.approx(3.5)


def test_ten_thousand_equal_flows_are_one_event():
    log = Log(np.full(100, 1.0))
    log.move("all", np.arange(10_000) % 100, np.ones(10_000))
    steps = 0
    while log.env.peek() < float("inf"):
        log.env.step()
        steps += 1
    assert log.ended == pytest.approx({"all": 100.0})
    assert steps < 10


def test_tolerance_merges_completions_and_ends_no_set_early():
    amounts = np.linspace(1.0, 1.04, 50)
    log = Log(np.ones(50), tolerance=0.05)
    log.move("all", np.arange(50), amounts)
    log.move("later", 0, 1.0, at_s=5.0)
    assert log.run() == pytest.approx({"all": 1.04, "later": 6.0})
    assert log.fabric.net.effort()[0] <= 3


moves = st.lists(st.tuples(
    st.integers(0, 8).map(lambda n: n / 2),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12).map(float)), min_size=1, max_size=4)),
    min_size=1, max_size=8)


@given(moves, st.lists(st.integers(1, 9).map(float), min_size=4, max_size=4))
@settings(max_examples=draws(100), deadline=None)
def test_sets_end_when_the_engine_alone_would_end_them(sets, capacity):
    seen = []
    log = Log(np.array(capacity), on_change=lambda now, carried: seen.append((now, carried)))
    alone = Fluid(capacity)
    alone.add_routes(np.arange(5), np.arange(4))
    wanted, owner = {}, {}
    for name, (at_s, flows) in enumerate(sets):
        routes, amounts = zip(*flows, strict=True)
        log.move(name, routes, amounts, at_s=at_s)
        for flow in alone.start(routes, amounts, at_s=at_s).tolist():
            owner[flow] = name
    while len(done := alone.run()[0]):
        wanted |= {owner[flow]: alone.now_s for flow in done.tolist()}
    assert log.run() == pytest.approx(wanted)
    for (before_s, before), (now_s, now) in pairwise(seen):
        assert (now - before <= np.array(capacity) * (now_s - before_s) + 1e-9).all()
    assert seen[-1][1] == pytest.approx(alone.carried())


def bucket(**given):
    return TokenBucket(**{"resource": 0, "base": 1.0, "burst": 3.0, "size": 4.0} | given)


def test_a_burst_lasts_as_long_as_its_tokens():
    """4 tokens drain at 3 - 1 a second: 2 s at 3/s, then 14 units at 1/s."""
    log = Log([1.0], buckets=(bucket(),))
    log.move("a", 0, 20.0)
    assert log.run() == pytest.approx({"a": 16.0})


@pytest.mark.parametrize(("idle_s", "takes_s"), [(10.0, 16.0), (1.0, 19.0), (4.0, 16.0)])
def test_tokens_come_back_while_nobody_sends(idle_s, takes_s):
    """After ``idle_s`` there are min(4, idle) tokens t: t/2 s at 3/s, the rest at 1/s."""
    log = Log([1.0], buckets=(bucket(),))
    log.move("a", 0, 20.0)
    log.move("b", 0, 20.0, at_s=16.0 + idle_s)
    assert log.run() == pytest.approx({"a": 16.0, "b": 16.0 + idle_s + takes_s})


def test_a_slow_sender_drains_slowly():
    """At 2/s the tokens last 4 s, in which 8 units pass; the other 12 at 1/s."""
    log = Log([1.0], buckets=(bucket(),))
    log.move("a", 0, 20.0, ceilings=2.0)
    assert log.run() == pytest.approx({"a": 16.0})


def test_below_the_base_rate_tokens_gather():
    """From 2 s the bucket is dry; b at 0.5/s from 16 s to 24 s fills it again, for c to burst."""
    log = Log([1.0], buckets=(bucket(),))
    log.move("a", 0, 20.0)
    log.move("b", 0, 4.0, at_s=16.0, ceilings=0.5)
    log.move("c", 0, 20.0, at_s=24.0)
    assert log.run() == pytest.approx({"a": 16.0, "b": 24.0, "c": 40.0})


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=8),
       st.floats(0.05, 3.0), st.floats(0.01, 50.0))
@settings(max_examples=60, deadline=None)
def test_a_bucket_never_lets_more_through_than_its_law(sends, base, size):
    """Over any interval at most size + base · time, and never faster than the burst."""
    seen = []
    log = Log([1.0], buckets=(bucket(base=base, size=size, burst=base * 3),),
              on_change=lambda now, carried: seen.append((now, carried[0])))
    for name, (at_s, amount) in enumerate(sends):
        log.move(name, 0, float(amount), at_s=at_s)
    log.run()
    for i, (start_s, start) in enumerate(seen):
        for end_s, end in seen[i:]:
            spent_s, sent = end_s - start_s, end - start
            assert sent <= size + base * spent_s + 1e-6
            assert sent <= 3 * base * spent_s + 1e-6
    assert len(seen) < 100 * len(sends)


def test_a_bucket_too_small_for_the_clock_does_not_stop_it():
    """Found by review: far from zero, a switch within the clock's resolution never came."""
    env = simpy.Environment(initial_time=100.0)
    fabric = TimedFluid(env, [1e9], buckets=(TokenBucket(0, 1e9, 2e9, 1e3),))
    route = fabric.net.add_routes([0, 1], [0])
    flows = fabric.move([route], [1e4])
    env.run(flows.done)
    assert env.now == pytest.approx(100.0 + 9e-6, abs=1e-7), "1 us at 2e9/s, 8 us at 1e9/s"
