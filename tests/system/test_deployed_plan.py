"""A plan on the real stack: engines follow the file, and links' counters show where data went.

The fabric is a leaf-spine of kernel routers, which hash addresses and ports over equal routes.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from ipaddress import IPv4Address
from itertools import count
from time import monotonic

import numpy as np
import pytest
import simpy
from scapy.layers.inet import IP, UDP
from scapy.utils import rdpcap

from harp.collectives.registry import make_plan
from harp.net import Engine
from harp.routing.deployment import Deployment
from harp.routing.hashes import NAMES, ROCE_PORT
from harp.routing.jobs import Job, Ranks, Wanted, plan_job, replan_jobs
from harp.routing.path_plan import PlanError
from lab.namespace import why_unusable
from lab.wiring import Wiring
from sim.cluster.placement import place
from sim.network.fidelity import make_network
from sim.network.interface import Capture, Site
from sim.network.transport import Style
from sim.records.timeline_track import Timeline
from sim.schema.parameters import load_stack
from tests.support import PATIENCE_S
from tests.support.cluster_files import cluster
from tests.support.levels import long

root_only = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
FABRIC = {"template": "leaf-spine", "leaves": 2, "spines": 4, "rate": "1Gbps",
          "hash": {"function": "linux"}}
MESSAGE = bytes(1 << 20)
A_MESSAGE = 300_000
"""Bytes that no link carries unless data crosses it."""
LONGEST_S = 15
"""Seconds that a path may take until data crosses it: TCP sends a lost SYN again after 1, 3, 7."""


def ranks_of(made):
    return Ranks(made.host, made.endpoint, made.own_nics, made.topology.host_names)


def planned(made, pairs, **wanted):
    """A plan, as ranks read it from its file."""
    plan = plan_job(made.fabric, ranks_of(made), Wanted(pairs, **wanted))
    return Deployment.from_json(plan.to_json())


def engine(plan, rank):
    """An engine that listens where the plan has the rank listen."""
    return Engine(plan.protocol, address=plan.ranks[rank].listen[0])


def data_crosses(wiring, plan, sender, receiver, paths, longest_s=LONGEST_S):
    """Links that messages cross from one rank's engine to another's, and the paths' addresses.

    It sends until each link of the plan has carried much, or for ``LONGEST_S``: kernel TCP may take
    the first messages on one or two of the paths, and on a busy machine one opens late.
    """
    flows = [flow for flow in plan.flows if (flow.sender, flow.receiver) == (sender, receiver)]
    wanted = {link for flow in flows for link in flow.links}
    with ExitStack() as stack:
        ends = []
        for rank in (sender, receiver):
            space = wiring.hosts[rank]
            with space.entered():
                ends.append(stack.enter_context(engine(plan, rank)))
        near, far = ends
        listener = far.listen(paths=paths)
        with wiring.hosts[sender].entered():
            out = near.connect(listener.handle, timeout=PATIENCE_S, paths=paths,
                               flows=plan.flows_of(sender))
        into = listener.accept(timeout=PATIENCE_S)
        before, end_s = wiring.sent_bytes(), monotonic() + longest_s
        for sent in count(1):
            posted = into.post(bytearray(len(MESSAGE)))
            out.send(MESSAGE).wait(PATIENCE_S)
            posted.wait(PATIENCE_S)
            carried = np.flatnonzero(wiring.sent_bytes() - before > A_MESSAGE)
            crossed = {name for name in map(wiring._fabric.link_name, carried)
                       if not answers(name, flows[0].links)}
            if sent >= paths and (crossed >= wanted or monotonic() > end_s):
                break
        leaves = sorted(path.local.removeprefix("tcp:") for path in out.paths)
    return crossed, leaves


def answers(link, there):
    """Whether a link leads back: over many messages TCP's acknowledgements are much, too."""
    (host, leaf), (far_leaf, far_host) = there[0].split("->"), there[-1].split("->")
    source, target = link.split("->")
    return (source == far_host or target == host or (target == leaf and source != host)
            or (source == far_leaf and target != far_host))


class Running:
    """A connection of one path for each flow of a plan, between hosts in their namespaces."""

    def __init__(self, stack, wiring, plan, hosts=None):
        self.wiring, self.plan, self.engines, self.sent = wiring, plan, [], 0
        self.hosts = wiring.hosts if hosts is None else hosts
        for rank in plan.ranks:
            with self.hosts[rank.rank].entered():
                self.engines.append(stack.enter_context(engine(plan, rank.rank)))
        self.pairs = [self.connect(flow) for flow in plan.flows]

    def connect(self, flow):
        listener = self.engines[flow.receiver].listen()
        with self.hosts[flow.sender].entered():
            out = self.engines[flow.sender].connect(listener.handle, timeout=PATIENCE_S,
                                                    flows=self.plan.flows_of(flow.sender))
        return out, listener.accept(timeout=PATIENCE_S)

    def begin(self):
        """Begin to send a message, each of other bytes, by every flow."""
        self.sent += 1
        content = self.sent.to_bytes(1, "big") * len(MESSAGE)
        buffers = [bytearray(len(MESSAGE)) for _ in self.pairs]
        posted = [far.post(buffer) for (_, far), buffer in zip(self.pairs, buffers, strict=True)]
        for near, _ in self.pairs:
            near.send(content)

        def end():
            for one in posted:
                one.wait(60)
            assert all(buffer == content for buffer in buffers)
        return end

    def follow(self, plan):
        """Deliver a revision; how many paths moved."""
        moved = 0
        for flow, (near, _) in zip(plan.flows, self.pairs, strict=True):
            with self.hosts[flow.sender].entered():
                moved += near.follow(plan.flows_of(flow.sender))
        self.plan = plan
        return moved

    def crossed(self):
        """Links between switches that a message by every flow crosses."""
        before = self.wiring.sent_bytes()
        self.begin()()
        carried = self.wiring.sent_bytes() - before
        names = map(self.wiring._fabric.link_name, np.flatnonzero(carried > A_MESSAGE))
        return {name for name in names if "h-" not in name}


def promised(plan):
    """Links between switches that a plan has its flows cross."""
    return {link for flow in plan.flows for link in flow.links[1:-1]}


def across(made):
    """Each host of one leaf sends to one of the other: as many flows as a leaf has hosts."""
    half = made.gpus // 2
    return [(rank, rank + half) for rank in range(half)]


@root_only
@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_data_takes_the_links_of_the_plan_through_kernel_routers(tmp_path, protocol):
    made = cluster(tmp_path, hosts=4, fabric=FABRIC, nic={"rate": "1Gbps"})
    plan = planned(made, across(made), protocol=protocol)
    many = planned(made, [(0, 2)], paths=4, protocol=protocol)
    assert len({flow.links[1] for flow in plan.flows}) == 2
    with closing(Wiring(made.fabric, 1.0, 1500)) as wiring:
        for flow in plan.flows:
            crossed, leaves = data_crosses(wiring, plan, flow.sender, flow.receiver, 1)
            assert leaves == [flow.source]
            assert crossed == set(flow.links)
        crossed, leaves = data_crosses(wiring, many, 0, 2, 4)
    assert leaves == sorted(flow.source for flow in many.flows)
    assert crossed == {link for flow in many.flows for link in flow.links}


@long
@root_only
def test_a_fabric_that_has_changed_sends_data_elsewhere_and_check_says_so(tmp_path):
    made = cluster(tmp_path, hosts=4, fabric=FABRIC, nic={"rate": "1Gbps"})
    plan = planned(made, across(made))
    stale = replace(made.fabric, hash_salt=made.fabric.hash_salt + 1)
    with pytest.raises(PlanError, match="links, addresses or hashes have changed"):
        plan.verify(stale)
    with closing(Wiring(stale, 1.0, 1500)) as wiring:
        went = [data_crosses(wiring, plan, flow.sender, flow.receiver, 1,
                             longest_s=1)[0] == set(flow.links)
                for flow in plan.flows]
    assert not all(went)


@root_only
@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_connections_follow_a_revision_around_a_dead_spine_and_lose_nothing(tmp_path, protocol):
    made = cluster(tmp_path, hosts=4, fabric=FABRIC, nic={"rate": "1Gbps"})
    plan, fabric = planned(made, across(made), protocol=protocol), made.fabric
    dead = fabric.nodes[plan.flows[-1].links[1].partition("->")[2]]
    down = np.flatnonzero((fabric.link_src == dead) | (fabric.link_dst == dead))
    share = np.ones(len(fabric.link_src))
    share[down] = 0.0
    with closing(Wiring(fabric, 1.0, 1500)) as wiring, ExitStack() as stack:
        running = Running(stack, wiring, plan)
        assert running.crossed() == promised(plan)
        end = running.begin()
        wiring.shape(down.tolist(), share)
        less = fabric.without(down)
        job = Job(ranks_of(made), Wanted(across(made), protocol=protocol))
        again, = replan_jobs(less, [job], [plan])
        wiring.route(less)
        assert running.follow(again) == 1
        end()
        assert running.crossed() == promised(again)
    again.verify(less)
    assert not {fabric.link_name(link) for link in down} & promised(again)


def packets(made, link, file):
    """Addresses and ports of what a planned ring sends over a link, at fidelity packet."""
    (scenario,) = made.topology.scenarios
    site = Site(made, load_stack(scenario.stack, made.topology.stacks),
                Style.of(scenario, made.topology), capture=Capture(link, str(file)))
    plan = make_plan("ring", ranks=made.gpus, nbytes=1 << 18, group=1)
    env = simpy.Environment()
    placement = place(made, np.arange(made.gpus), 1, affinity=True).of(plan.name)
    with closing(make_network("packet", env, site)) as network:
        communicator = network.communicator()
        communicator.announce(plan, placement)
        env.run(env.process(communicator.run(plan, placement, lambda _: 0.0,
                                             Timeline(env, lambda _: None, "plan"))))
    return {(int(IPv4Address(frame[IP].src)), int(IPv4Address(frame[IP].dst)), frame[UDP].sport,
             frame[UDP].dport) for frame in rdpcap(str(file))}


@pytest.mark.parametrize("function", NAMES)
def test_packets_of_a_planned_row_hash_to_the_links_that_carry_them(tmp_path, function):
    made = cluster(tmp_path, hosts=4, fabric={**FABRIC, "hash": {"function": function}},
                   nic={"rate": "1Gbps"},
                   scenario={"stack": "harp", "channels": 1, "routing": "plan"})
    fabric, carried = made.fabric, []
    endpoint = {int(ip): number for number, ip in enumerate(fabric.endpoint_ip)}
    for name in (f"leaf{leaf}->spine{spine}" for leaf in range(2) for spine in range(4)):
        for src, dst, src_port, dst_port in packets(made, name, tmp_path / "link.pcap"):
            ends = endpoint[src], endpoint[dst]
            _, links = fabric.route(fabric.flows(*ends, src_port, dst_port))
            assert name in {fabric.link_name(link) for link in links}
            carried += [ends] if dst_port == ROCE_PORT else []
    assert sorted(carried) == [(1, 2), (3, 0)]  # the ring's edges between leaves, once each
