"""One plan object runs at every fidelity and over real connections."""

from __future__ import annotations

import asyncio
from contextlib import closing

import numpy as np
import pytest
import simpy

from harp.collectives.execute import Execution
from harp.collectives.ir import Buffer
from harp.collectives.registry import make_plan
from harp.collectives.symbolic_check import check
from harp.net.channel import ConnectionChannel
from harp.net.engine import Engine
from lab.namespace import why_unusable
from sim.cluster.placement import place
from sim.network.fidelity import NETWORKS, make_network, wall_clock
from sim.network.interface import Site
from sim.network.transport import Style
from sim.records.timeline_track import Timeline
from sim.schema.parameters import load_stack
from tests.support.cluster_files import cluster
from tests.support.levels import long_except

RANKS = 4
NBYTES = 1 << 20
LEAF_SPINE = {"template": "leaf-spine", "leaves": 2, "spines": 2, "rate": "1Gbps"}


def times_s(made, fidelity, plan):
    """Simulated seconds that a network of this fidelity takes for the plan, twice."""
    topology = made.topology
    env = wall_clock(fidelity, topology) or simpy.Environment()
    stack = load_stack("harp", topology.stacks)
    site = Site(made, stack, Style.of(topology.scenarios[0], topology))
    placement = place(made, np.arange(RANKS), 1, affinity=True).of(plan.name)
    found = []
    with closing(make_network(fidelity, env, site)) as network:
        communicator = network.communicator()
        for _ in range(2):
            start_s, spans = env.now, []
            line = Timeline(env, spans.append, "plan")
            env.run(env.process(communicator.run(plan, placement, lambda _: 0.0, line)))
            found.append(env.now - start_s)
            told_s = sum(span.end_s - span.start_s for span in spans)
            assert told_s == pytest.approx(env.now - start_s)
    return found


def run_over_connections(plan, inputs):
    """The plan's result at every rank, over HARP connections on loopback."""
    async def go(engines):
        channels = [{} for _ in engines]
        for near in range(RANKS):
            for far in range(near):
                with engines[far].listen() as listener:
                    ends = await asyncio.gather(engines[near].connect_async(listener.handle),
                                                listener.accept_async())
                channels[near][far], channels[far][near] = map(ConnectionChannel, ends)
        ranks = [Execution(plan, rank, inputs.dtype, channels[rank].__getitem__)
                 for rank in range(RANKS)]
        for rank, own in zip(ranks, inputs, strict=True):
            rank.buffers[Buffer.DATA][:] = own.view(np.uint8)
        await asyncio.gather(*(rank.run() for rank in ranks))
        await asyncio.gather(*(end.flush() for own in channels for end in own.values()))
        return [rank.buffers[Buffer.DATA].view(inputs.dtype) for rank in ranks]

    engines = [Engine("udp", address="127.0.0.1") for _ in range(RANKS)]
    try:
        return asyncio.run(go(engines))
    finally:
        for engine in engines:
            engine.close()


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
@pytest.mark.parametrize("name", long_except(["ring", "2d"], "2d"))
def test_one_plan_runs_at_every_fidelity_and_over_real_connections(tmp_path, name):
    plan = make_plan(name, ranks=RANKS, nbytes=NBYTES, group=2)
    check(plan)
    made = cluster(tmp_path, gpus=2, rate_bps=1e9, fabric=LEAF_SPINE, lab={"scale": "1/10"},
                   scenario={"stack": "harp"})
    taken_s = {fidelity: times_s(made, fidelity, plan) for fidelity in NETWORKS}
    assert set(taken_s) == {"flow", "packet", "steady", "lab"}
    assert taken_s["steady"] == taken_s["packet"]
    assert taken_s["packet"][1] == pytest.approx(taken_s["flow"][1], rel=0.25)
    assert taken_s["lab"][1] > 0.7 * taken_s["flow"][1]
    inputs = np.random.default_rng(2).integers(-99, 99, (RANKS, NBYTES // 4)).astype("<i4")
    for result in run_over_connections(plan, inputs):
        np.testing.assert_array_equal(result, inputs.sum(axis=0, dtype="<i4"))
