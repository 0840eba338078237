"""A plan's next revision while packets are on their way: a link dies, and sessions follow it."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import simpy

from sim.cluster.cluster import Cluster
from sim.cluster.placement import choose_gpus, place
from sim.network.fidelity import make_network
from sim.network.interface import Site
from sim.network.transport import Style
from sim.records.timeline_track import Timeline
from sim.schema import load
from sim.schema.parameters import load_stack
from sim.validation.fidelities import FILE, MIB, pattern

SENDERS = [host for host in range(16) if host % 4 < 3]
"""Three of the four hosts under each leaf, so that three of four spines are enough."""


class Ring:
    """Leaf after leaf sends to the next one, by planned paths, over and over."""

    def __init__(self) -> None:
        topology = load(FILE, ("scenarios[0].routing=plan",))
        (scenario,) = topology.scenarios
        cluster = Cluster(topology)
        gpus = choose_gpus(cluster, range(cluster.hosts), cluster.gpus, affinity=False)
        self.env, self.fabric = simpy.Environment(), cluster.fabric
        self.plan = pattern(SENDERS, [(host + 4) % 16 for host in SENDERS], 16 * MIB)(16, 1)
        self.placement = place(cluster, gpus, 1, affinity=False).of(self.plan.name)
        self.network = make_network("packet", self.env, Site(
            cluster, load_stack(scenario.stack, topology.stacks), Style.of(scenario, topology)))
        self.communicator = self.network.communicator()
        self.communicator.announce(self.plan, self.placement)

    def run(self) -> float:
        """Move the pattern once; seconds."""
        line, start_s = Timeline(self.env, lambda _: None, "ring"), self.env.now
        self.env.run(self.env.process(self.communicator.run(
            self.plan, self.placement, lambda _: 0.0, line)))
        return self.env.now - start_s

    def frames_placed(self) -> list[int]:
        """Frames that each connection has put where they belong, each once."""
        return [self.network.timed.world.channel_frames(n) for n in range(len(SENDERS))]

    def lose(self, links: np.ndarray, after_s: float, revised_s: float) -> None:
        """Let links die after a while, and give out the plan's next revision later."""
        def strike():
            yield self.env.timeout(after_s)
            share = np.ones(len(self.fabric.link_src))
            share[links] = 0.0
            self.network.scale(share)
            yield self.env.timeout(revised_s)
            self.network.avoid(links)
        self.env.process(strike())


def test_a_revised_plan_brings_the_rate_back_and_nothing_is_lost():
    ring = Ring()
    ring.run()
    once = ring.frames_placed()
    whole_s = ring.run()
    with closing(ring.network):
        ring.lose(ring.fabric.links_between("leaf0", "spine1"), 0.3 * whole_s, 2 * whole_s)
        struck_s = ring.run()
        after_s = ring.run()
    assert struck_s > 2.3 * whole_s
    assert after_s == pytest.approx(whole_s, rel=0.05)
    assert ring.frames_placed() == [4 * frames for frames in once]
