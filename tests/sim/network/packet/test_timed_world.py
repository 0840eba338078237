"""The packet network as events of simpy."""

from __future__ import annotations

import numpy as np
import pytest
import simpy

from sim.network.interface import CutOffError, TooLargeError
from sim.network.packet import assumptions
from sim.network.packet.packet_world import Stage
from sim.network.packet.timed_world import TimedWorld
from sim.network.packet_routes import find_routes
from sim.network.transport import Style, Transport
from sim.schema.parameters import load_stack
from tests.support.cluster_files import cluster

RATE_BPS = 10e9
NBYTES = 4 << 20


class Pair:
    """Two hosts, and a connection between them."""

    def __init__(self, folder) -> None:
        made = cluster(folder, rate_bps=RATE_BPS)
        transport = Transport(made, load_stack("harp", made.topology.stacks), Style())
        self.env = simpy.Environment()
        self.timed = TimedWorld(self.env, transport)
        ((route,),) = find_routes(transport, *(np.array([number]) for number in (0, 1, 0)))
        self.links = [*route.there.links, *route.back.links]
        there, back = ([self.timed.world.add_route(way.links)] for way in (route.there, route.back))
        self.channel = self.timed.world.add_connection(
            self.timed.end(0, 0, sends=True), self.timed.end(1, 0, sends=False), there, back)
        self.on_line = transport.on_line

    def begin(self, nbytes: int = NBYTES) -> simpy.Event:
        stage = Stage([0], [1], [self.channel], [nbytes], [8])
        return self.timed.run(2, 1, iter([stage]), nbytes)

    def took_s(self) -> float:
        began_s = self.env.now
        self.env.run(until=self.begin())
        return self.env.now - began_s


@pytest.fixture
def pair(tmp_path):
    return Pair(tmp_path)


def test_a_run_ends_when_its_bytes_have_crossed_the_line(pair):
    line_s = NBYTES * pair.on_line * 8 / RATE_BPS
    assert pair.took_s() == pytest.approx(line_s, rel=0.1)
    assert pair.timed.running == 0


def test_what_happens_outside_meanwhile_changes_no_time(pair, tmp_path):
    """A clock that ticks at odd times makes the network stop and go on."""
    def tick():
        while True:
            yield pair.env.timeout(1.7e-5)

    alone_s = Pair(tmp_path).took_s()
    pair.env.process(tick())
    assert pair.took_s() == pytest.approx(alone_s, abs=2e-9)


def test_a_run_begins_at_the_time_of_its_call(pair, tmp_path):
    pair.env.run(until=0.5)
    assert pair.took_s() == pytest.approx(Pair(tmp_path).took_s(), rel=0.01)


def test_a_rate_that_changes_holds_from_then_on(pair):
    whole_s = pair.took_s()
    done = pair.begin()
    began_s = pair.env.now
    pair.env.run(until=began_s + whole_s / 2)
    links = np.array(pair.links)
    pair.timed.change(links, np.full(len(links), RATE_BPS / 4))
    pair.env.run(until=done)
    assert pair.env.now - began_s == pytest.approx(whole_s / 2 + 4 * whole_s / 2, rel=0.1)


def test_time_for_which_the_network_stood_is_no_time_of_connections(pair):
    """Their next message takes as long as at once, and the clock goes on from where it is."""
    first_s = pair.took_s()
    pair.env.run(until=pair.env.now + 7.0)
    pair.timed.stand(7.0)
    at_ns = pair.timed.world.now_ns
    assert pair.took_s() <= first_s
    assert pair.timed.world.now_ns - at_ns < 1.1 * first_s * 1e9


def test_a_link_that_never_returns_cuts_off(pair):
    pair.took_s()
    links = np.array(pair.links)
    pair.timed.change(links, np.zeros(len(links)))
    with pytest.raises(CutOffError, match="a connection ended: "):
        pair.env.run(until=pair.begin())


def test_too_many_frames_are_refused_before_they_are_sent(pair, monkeypatch):
    monkeypatch.setattr(assumptions, "MOST_FRAMES", 100)
    with pytest.raises(TooLargeError, match="frames by 0 s are more than the 100 of fidelity"):
        pair.begin()
    assert pair.timed.running == 0
