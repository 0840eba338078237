"""Packets of the laboratory take the links that flow and packet say: by the links' counters."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from harp.collectives.registry import make_plan
from lab.namespace import why_unusable
from sim.answer.scenario import Settings, run_scenario
from sim.cluster.placement import place
from sim.network.fidelity import make_network, wall_clock
from sim.network.interface import Site
from sim.network.packet_routes import find_routes
from sim.network.transport import Style, Transport
from sim.records.timeline_track import Timeline
from sim.schema.parameters import load_stack
from tests.support.cluster_files import cluster
from tests.support.levels import long, long_except

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())

FABRIC = {"template": "leaf-spine", "leaves": 2, "spines": 4, "rate": "1Gbps",
          "hash": {"function": "linux"}}
NBYTES = 1 << 20
A_MESSAGE = 150_000
"""Bytes that no link carries unless data crosses it: much more than acknowledgments, much less than
a flow's share."""


def ran_at(made, fidelity, plan, record=lambda _: None):
    """Counters of a network after one run of a plan, before it is closed."""
    topology = made.topology
    (scenario,) = topology.scenarios
    env = wall_clock(fidelity, topology)
    site = Site(made, load_stack(scenario.stack, topology.stacks), Style.of(scenario, topology))
    placement = place(made, np.arange(made.gpus), scenario.channels, affinity=True).of(plan.name)
    with closing(make_network(fidelity, env, site)) as network:
        communicator = network.communicator()
        communicator.announce(plan, placement)
        env.run(env.process(communicator.run(plan, placement, lambda _: 0.0,
                                             Timeline(env, record, "plan"))))
        return network._wiring.sent_bytes(), site, placement


def links_by_routes(site, plan, placement):
    """Names of the links that data must cross, by the routes that packet would take."""
    transport = Transport(site.cluster, site.stack, site.style, site.seed)
    edges = [(int(gpus[src]), int(gpus[dst]), channel) for phase in plan.phases()
             for channel, gpus in enumerate(placement)
             for src, dst in zip(phase.src.tolist(), phase.dst.tolist(), strict=True)]
    src, dst, channel = (np.array(column) for column in zip(*edges, strict=True))
    transport.announce(src, dst, channel)
    return {site.cluster.fabric.link_name(link) for routes in find_routes(
        transport, src, dst, channel) for route in routes for link in route.there.links}


@pytest.mark.parametrize(("stack", "bond", "more"), long_except([
    ("kernel-tcp", "lacp-3+4", {"sockets": 3, "helpers": 1}),
    ("kernel-tcp", "lacp-2+3", {"channels": 2}),
    ("harp", "lacp-3+4", {"sockets": 4}),
    ("harp", "none", {"channels": 2}),
    ("harp", "dynamic", {}),
    ("harp", "lacp-3+4", {"routing": "plan", "sockets": 2}),
], ("harp", "lacp-3+4", {"routing": "plan", "sockets": 2})), ids=[
        "TCP 3 sockets", "TCP 2 channels", "HARP 4 paths", "HARP 2 channels", "HARP both ports",
        "HARP planned"])
def test_data_crosses_the_links_that_the_simulators_say(tmp_path, stack, bond, more):
    made = cluster(tmp_path, hosts=4, gpus=1, fabric=FABRIC, lab={"scale": "1/10"},
                   nic={"rate": "1Gbps", "ports": 2, "bond": bond},
                   scenario={"stack": stack, "channels": 1, "bond": bond, **more})
    plan = make_plan("ring", ranks=made.gpus, nbytes=NBYTES, group=1)
    sent, *carried = ran_at(made, "lab", plan)
    took = {made.fabric.link_name(link) for link in np.flatnonzero(sent > A_MESSAGE)}
    assert took == links_by_routes(carried[0], plan, carried[1])


@pytest.mark.parametrize("stack", ["kernel-tcp", "harp"])
def test_sprayed_packets_cross_every_spine(tmp_path, stack):
    made = cluster(tmp_path, hosts=2, gpus=1, fabric=FABRIC, lab={"scale": "1/10"},
                   nic={"rate": "1Gbps"}, scenario={"stack": stack, "channels": 1,
                                                    "routing": "spray"})
    sent, *_ = ran_at(made, "lab", make_plan("ring", ranks=made.gpus, nbytes=NBYTES, group=1))
    names = [made.fabric.link_name(link) for link in range(len(sent))]
    up = [load for name, load in zip(names, sent, strict=True) if name.startswith("leaf0->spine")]
    assert len(up) == 4
    assert min(up) > 0.5 * np.mean(up)
    assert sum(up) > NBYTES


def test_a_transfer_says_what_held_it_back(tmp_path):
    """A ring over NICs of 1 Gb/s, at 25 Mb/s here, so that no machine is too slow for it."""
    made = cluster(tmp_path, hosts=2, gpus=1, fabric={**FABRIC, "rate": "4Gbps"},
                   lab={"scale": "1/40"},
                   nic={"rate": "1Gbps"}, scenario={"stack": "kernel-tcp", "channels": 1})
    spans = []
    ran_at(made, "lab", make_plan("ring", ranks=2, nbytes=NBYTES, group=1), spans.append)
    assert [span.limit for span in spans if span.kind == "transfer"] == ["NIC"]


@long
def test_utilisation_of_links_is_counted(tmp_path):
    made = cluster(tmp_path, hosts=2, gpus=1, fabric=FABRIC, lab={"scale": "1/10"},
                   nic={"rate": "1Gbps"}, scenario={"stack": "kernel-tcp", "channels": 1,
                                                    "fp16": True},
                   workload={"model": "resnet50", "batch": 32, "framework": "free"})
    settings = Settings(fidelity="lab", record_links=True)
    use = run_scenario(made, made.topology.scenarios[0], 2, settings)[0].links
    assert "h-0/eth0->leaf0" in use.names
    busiest = use.share[list(use.names).index("h-0/eth0->leaf0")]
    assert 0.5 < busiest.max() <= 1.0
