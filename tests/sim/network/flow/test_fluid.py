"""The fluid engine against an independent water-filling in numpy, and against its laws."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sim.network.flow.fluid
from sim.network.flow.fluid import Fluid
from tests.support.levels import draws

CLOSE = 1e-6
"""Relative; far above what rounding makes of it, far below any error of sharing."""


def water_fill(capacity, uses, weight, ceiling):
    """Max-min fair rates by raising one level: uses[r, f] units of r for each unit of flow f."""
    rate = np.full(len(weight), np.inf)
    still = np.ones(len(weight), np.bool_)
    while still.any():
        left = capacity - uses[:, ~still] @ rate[~still]
        pull = uses[:, still] @ weight[still]
        full_at = np.divide(np.maximum(left, 0), pull, out=np.full(len(capacity), np.inf),
                            where=pull > 0)
        level = min(full_at.min(initial=np.inf), (ceiling / weight)[still].min())
        full = full_at <= level * (1 + 1e-12)
        stops = still & ((uses[full] > 0).any(axis=0) | (ceiling / weight <= level * (1 + 1e-12)))
        rate[stops] = np.minimum(level * weight, ceiling)[stops]
        still &= ~stops
    return rate


def certify(capacity, uses, weight, ceiling, rate):
    """Assert that rates are weighted max-min fair and that no resource is above its capacity."""
    load = uses @ rate
    assert (load <= capacity * (1 + 1e-9) + 1e-12).all()
    level = rate / weight
    full = load >= capacity * (1 - 1e-8)
    for flow in range(len(rate)):
        at_ceiling = rate[flow] >= ceiling[flow] * (1 - 1e-9)
        held = [level[flow] >= level[uses[r] > 0].max() * (1 - 1e-8)
                for r in np.flatnonzero((uses[:, flow] > 0) & full)]
        assert at_ceiling or any(held), flow
        assert rate[flow] <= ceiling[flow] * (1 + 1e-9)


coefficients = st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0])
weights = st.sampled_from([0.5, 1.0, 1.0, 2.0, 5.0])
ceilings = st.sampled_from([math.inf, math.inf, 0.5, 1.0, 4.0])
capacities = st.integers(0, 20).map(float)
amounts = st.integers(0, 60).map(float)


class Engine(RuleBasedStateMachine):
    """Any sequence of starts, changes, reroutes and cancels, with a plain model beside it."""

    @initialize(capacity=st.lists(capacities, min_size=1, max_size=6), data=st.data())
    def build(self, capacity, data):
        self.capacity = np.array(capacity)
        self.net = Fluid(self.capacity)
        hops = st.dictionaries(st.integers(0, len(capacity) - 1), coefficients, min_size=1,
                               max_size=4)
        self.routes = data.draw(st.lists(hops, min_size=1, max_size=6))
        ptr = np.cumsum([0, *map(len, self.routes)])
        assert self.net.add_routes(ptr, [r for route in self.routes for r in route],
                                   [c for route in self.routes for c in route.values()]) == 0
        self.flows = {}
        self.carried = np.zeros(len(capacity))

    def arrays(self):
        """Ids of the running flows, and their part in the oracle's problem."""
        ids = [i for i, flow in self.flows.items() if flow["start"] <= self.net.now_s]
        uses = np.zeros((len(self.capacity), len(ids)))
        for column, flow in enumerate(ids):
            for resource, coefficient in self.routes[self.flows[flow]["route"]].items():
                uses[resource, column] = coefficient
        weight = np.array([self.flows[i]["weight"] for i in ids])
        ceiling = np.array([self.flows[i]["ceiling"] for i in ids])
        return ids, uses, weight, ceiling

    def pass_time(self, until_s):
        """Let the engine go to its next event, at most to ``until_s``; the model follows it."""
        ids, uses, weight, ceiling = self.arrays()
        rate = water_fill(self.capacity, uses, weight, ceiling)
        before_s = self.net.now_s
        done, times = self.net.run(until_s)
        assert (times >= before_s).all()
        assert (times <= until_s).all()
        spent_s = self.net.now_s - before_s
        for flow, speed in zip(ids, rate, strict=True):
            self.flows[flow]["left"] -= speed * spent_s
            for resource, coefficient in self.routes[self.flows[flow]["route"]].items():
                self.carried[resource] += coefficient * speed * spent_s
        for flow in done.tolist():
            assert abs(self.flows.pop(flow)["left"]) < CLOSE
        for flow in self.flows.values():
            assert flow["left"] > -CLOSE

    @rule(count=st.integers(1, 5), data=st.data())
    def start(self, count, data):
        each = st.lists(st.integers(0, len(self.routes) - 1), min_size=count, max_size=count)
        route = data.draw(each)
        amount, weight, ceiling, wait_s = (
            data.draw(st.lists(kind, min_size=count, max_size=count))
            for kind in (amounts, weights, ceilings, st.sampled_from([-1.0, 0.0, 0.0, 1.5, 4.0])))
        at_s = self.net.now_s + np.array(wait_s)
        ids = self.net.start(route, amount, weights=weight, ceilings=ceiling, at_s=at_s)
        assert len(set(ids.tolist())) == count
        assert not set(ids.tolist()) & set(self.flows)
        for i, flow in enumerate(ids.tolist()):
            self.flows[flow] = {"route": route[i], "left": amount[i], "weight": weight[i],
                                "ceiling": ceiling[i], "start": at_s[i]}

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 7.0]))
    def advance(self, seconds):
        target_s = self.net.now_s + seconds
        for _ in range(200):
            next_s = self.net.next_s
            self.pass_time(min(target_s, next_s))
            if next_s > target_s:
                break
        assert self.net.now_s == pytest.approx(target_s)

    @rule(capacity=capacities, data=st.data())
    def change(self, capacity, data):
        resource = data.draw(st.integers(0, len(self.capacity) - 1))
        self.net.set_capacity(resource, capacity)
        self.capacity[resource] = capacity

    @precondition(lambda self: self.flows)
    @rule(data=st.data())
    def reroute(self, data):
        flow = data.draw(st.sampled_from(sorted(self.flows)))
        route = data.draw(st.integers(0, len(self.routes) - 1))
        self.net.reroute(flow, route)
        self.flows[flow]["route"] = route

    @precondition(lambda self: self.flows)
    @rule(data=st.data())
    def cancel(self, data):
        flow = data.draw(st.sampled_from(sorted(self.flows)))
        left = self.net.cancel(flow)
        assert left == pytest.approx(self.flows.pop(flow)["left"], rel=CLOSE, abs=CLOSE)
        with pytest.raises(ValueError, match="no flow"):
            self.net.cancel(flow)

    @invariant()
    def rates_are_max_min_fair(self):
        ids, uses, weight, ceiling = self.arrays()
        rate, left = self.net.state(ids)
        certify(self.capacity, uses, weight, ceiling, rate)
        assert rate == pytest.approx(water_fill(self.capacity, uses, weight, ceiling), rel=CLOSE)
        assert left == pytest.approx([self.flows[i]["left"] for i in ids], rel=CLOSE, abs=CLOSE)
        assert self.net.load() == pytest.approx(uses @ rate, rel=CLOSE, abs=CLOSE)

    @invariant()
    def bytes_are_conserved(self):
        assert self.net.carried() == pytest.approx(self.carried, rel=CLOSE, abs=CLOSE)
        assert self.net.flows == len(self.flows)


TestEngine = Engine.TestCase
TestEngine.settings = settings(max_examples=draws(80), stateful_step_count=25, deadline=None,
                               suppress_health_check=[HealthCheck.too_slow])


@st.composite
def networks(draw, most_flows=30):
    """Capacities, routes (dense uses[resource, route]) and flows that all can complete."""
    resources = draw(st.integers(1, 8))
    flows = draw(st.integers(1, most_flows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    uses = rng.choice([0.0, 0.5, 1.0, 2.0], p=[0.6, 0.1, 0.2, 0.1], size=(resources, flows))
    uses[rng.integers(resources, size=flows), np.arange(flows)] = 1.0
    return (rng.uniform(1, 20, resources), uses, rng.choice([0.0, 1.0, 8.0, 8.0, 30.0], flows),
            rng.choice([0.5, 1.0, 3.0], flows), rng.choice([np.inf, 2.0, 0.5], flows),
            rng.choice([0.0, 0.0, 1.0, 2.5], flows))


def build(capacity, uses, tolerance=None):
    net = Fluid(capacity) if tolerance is None else Fluid(capacity, tolerance)
    hop = [np.flatnonzero(column) for column in uses.T]
    ptr = np.cumsum([0, *map(len, hop)])
    net.add_routes(ptr, np.concatenate(hop), uses.T[uses.T > 0])
    return net


def completion_times(net, flows):
    done_s = np.full(flows, np.nan)
    while True:
        ids, times = net.run()
        if not len(ids):
            return done_s
        assert np.isnan(done_s[ids]).all(), "a flow completed twice"
        done_s[ids] = times


def oracle_times(network):
    """Completion times of all flows, event by event."""
    capacity, uses, amount, weight, ceiling, start_s = network
    now_s, left, done_s = 0.0, amount.copy(), np.full(len(amount), np.nan)
    while np.isnan(done_s).any():
        on = np.flatnonzero(np.isnan(done_s) & (start_s <= now_s))
        ended = on[left[on] <= 1e-9]
        if len(ended):
            done_s[ended] = now_s
            continue
        rate = water_fill(capacity, uses[:, on], weight[on], ceiling[on])
        later = start_s[start_s > now_s]
        step_s = min((left[on] / rate).min(initial=np.inf), (later - now_s).min(initial=np.inf))
        left[on] -= rate * step_s
        now_s += step_s
    return done_s


@given(networks())
@settings(max_examples=draws(150), deadline=None)
def test_completion_times_are_the_oracles(network):
    capacity, uses, amount, weight, ceiling, start_s = network
    net = build(capacity, uses)
    net.start(np.arange(len(amount)), amount, weights=weight, ceilings=ceiling, at_s=start_s)
    assert completion_times(net, len(amount)) == pytest.approx(oracle_times(network), abs=1e-7)
    assert net.carried() == pytest.approx(uses @ amount, rel=1e-9, abs=1e-9)
    assert net.flows == 0
    assert math.isinf(net.next_s)


@given(networks(), st.sampled_from([1e-3, 0.05, 0.5]))
@settings(max_examples=100, deadline=None)
def test_tolerance_never_over_commits(network, tolerance):
    """Merging completions makes flows late, never a resource too fast, and conserves bytes."""
    capacity, uses, amount, weight, ceiling, start_s = network
    net = build(capacity, uses, tolerance)
    net.start(np.arange(len(amount)), amount, weights=weight, ceilings=ceiling, at_s=start_s)
    before, before_s = net.carried(), 0.0
    while True:
        ids, _ = net.run()
        if not len(ids):
            break
        now, now_s = net.carried(), net.now_s
        assert (now - before <= capacity * (now_s - before_s) * (1 + 1e-9) + 1e-9).all()
        before, before_s = now, now_s
    assert net.carried() == pytest.approx(uses @ amount, rel=1e-9, abs=1e-9)


@given(networks(), st.sampled_from([1e-6, 1e-3, 0.02]))
@settings(max_examples=60, deadline=None)
def test_tolerance_costs_little(network, tolerance):
    """The last completion is late by at most the window of each merge."""
    amount, flows = network[2], len(network[2])
    exact, merged = build(*network[:2]), build(*network[:2], tolerance)
    for net in (exact, merged):
        net.start(np.arange(flows), amount, weights=network[3], ceilings=network[4],
                  at_s=network[5])
    exact_s, merged_s = exact.drain(), merged.drain()
    assert merged_s <= exact_s * (1 + tolerance) ** flows + 1e-9
    assert merged.effort()[0] <= exact.effort()[0] + flows


def test_equal_transfers_are_one_event():
    net = Fluid(np.full(100, 5.0))
    net.add_routes(np.arange(101), np.arange(100))
    net.start(np.arange(100), np.full(100, 10.0))
    ids, times = net.run()
    assert sorted(ids.tolist()) == list(range(100))
    assert (times == 2.0).all()
    assert net.effort()[0] <= 2


def test_weights_and_ceilings_by_hand():
    net = Fluid([12.0])
    route = net.add_routes([0, 1], [0])
    ids = net.start(np.full(3, route), np.full(3, 100.0), weights=[1.0, 2.0, 3.0],
                    ceilings=[np.inf, np.inf, 3.0])
    assert net.state(ids)[0] == pytest.approx([3.0, 6.0, 3.0])
    net.cancel(int(ids[2]))
    assert net.state(ids[:2])[0] == pytest.approx([4.0, 8.0])


def test_zero_capacity_stops_and_its_return_resumes():
    net = Fluid([10.0])
    route = net.add_routes([0, 1], [0])
    net.start(route, 20.0)
    net.run(1.0)
    net.set_capacity(0, 0.0)
    assert math.isinf(net.next_s)
    assert len(net.run()[0]) == 0
    net.run(5.0)
    net.set_capacity(0, 5.0)
    assert net.run()[1] == pytest.approx([7.0])


def test_nothing_to_move_is_done_at_once_even_on_a_dead_resource():
    net = Fluid([0.0])
    route = net.add_routes([0, 1], [0])
    assert net.run()[0].size == 0
    ids = net.start(route, 0.0)
    done, times = net.run()
    assert done.tolist() == ids.tolist()
    assert times.tolist() == [0.0]


def test_a_route_over_nothing_takes_no_time_but_for_its_ceiling():
    net = Fluid([1.0])
    route = net.add_routes([0, 0], [])
    net.start(np.full(2, route), np.full(2, 6.0), ceilings=[np.inf, 2.0], at_s=[1.0, 1.0])
    assert net.run()[1].tolist() == [1.0]
    assert net.run()[1].tolist() == [4.0]


@given(st.integers(1, 20), st.integers(1, 20))
@settings(max_examples=30, deadline=None)
def test_ids_are_reused_without_mixing_flows_up(first, second):
    """A new flow under an old id inherits nothing of the flow that had it."""
    net = Fluid([1.0, 1.0])
    net.add_routes([0, 1, 2], [0, 1])
    old = net.start(np.zeros(first, np.int32), np.ones(first), ceilings=np.full(first, 0.01))
    net.drain()
    ends_s = net.now_s
    new = net.start(np.ones(second, np.int32), np.ones(second))
    assert set(new.tolist()) & set(old.tolist())
    assert len(set(new.tolist())) == second
    assert net.state(new)[0] == pytest.approx(np.full(second, 1 / second))
    assert net.drain() == pytest.approx(ends_s + second)
    assert net.carried() == pytest.approx([first, second])


def test_a_long_run_keeps_no_dead_flows_on_a_resource():
    net = Fluid([1.0])
    route = net.add_routes([0, 1], [0])
    for turn in range(2000):
        net.start(route, 1.0)
        assert net.run()[1] == pytest.approx([turn + 1.0])
    assert net.effort()[1] <= 3 * 2000


@pytest.mark.parametrize(("call", "says"), [
    (lambda net: Fluid([-1.0]), "capacities"),
    (lambda net: Fluid([np.inf]), "capacities"),
    (lambda net: Fluid([1.0], -1.0), "tolerance"),
    (lambda net: net.add_routes([0, 1], [7]), "unknown resource"),
    (lambda net: net.add_routes([0, 1], [0], [0.0]), "not positive"),
    (lambda net: net.add_routes([0, 2], [0]), "ptr"),
    (lambda net: net.add_routes([0, 1], [0], [1.0, 1.0]), "coefficient"),
    (lambda net: net.start(0, -1.0), "amount"),
    (lambda net: net.start(0, np.nan), "amount"),
    (lambda net: net.start(5, 1.0), "route"),
    (lambda net: net.start(0, 1.0, weights=0.0), "weight"),
    (lambda net: net.start(0, 1.0, ceilings=0.0), "ceiling"),
    (lambda net: net.start(0, 1.0, at_s=np.inf), "start"),
    (lambda net: net.set_capacity(3, 1.0), "resource 3"),
    (lambda net: net.set_capacity(0, np.nan), "capacity nan"),
    (lambda net: net.reroute(0, 0), "no flow 0"),
    (lambda net: net.cancel(-1), "no flow"),
    (lambda net: net.state([0]), "unknown"),
])
def test_an_impossible_request_is_refused_and_changes_nothing(call, says):
    net = Fluid([10.0])
    net.add_routes([0, 1], [0])
    with pytest.raises(ValueError, match=says):
        call(net)
    assert net.flows == 0
    net.start(0, 10.0)
    assert net.drain() == 1.0


@given(networks(most_flows=12))
@settings(max_examples=40, deadline=None)
def test_scale_does_not_matter(network):
    """Units are the caller's: bytes/s of a fabric and cores of a host stand side by side."""
    capacity, uses, amount, weight, ceiling, start_s = network
    assume(amount.any())
    plain, scaled = build(capacity, uses), build(capacity * 1e10, uses * 1e-2)
    plain.start(np.arange(len(amount)), amount, weights=weight, ceilings=ceiling, at_s=start_s)
    scaled.start(np.arange(len(amount)), amount * 1e12, weights=weight, ceilings=ceiling * 1e12,
                 at_s=start_s)
    assert scaled.drain() == pytest.approx(plain.drain(), rel=1e-7)


def test_the_manuals_example_runs():
    tried = doctest.testmod(sim.network.flow.fluid)
    assert tried.attempted > 0
    assert tried.failed == 0
