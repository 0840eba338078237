"""The proxy thread of a process: messages of all channels, both ways, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sim.answer.collective_bench import measure
from sim.answer.scenario import Settings
from sim.network.packet.packet_world import End, Stage
from tests.sim.network.packet.packet_net import SEGMENT, WIRE, Net
from tests.support.cluster_files import cluster

if TYPE_CHECKING:
    from pathlib import Path

COST_S = 5e-6


def test_thread_handles_what_it_sends_and_what_comes_one_after_the_other() -> None:
    """Three hosts send to one that sends as well: it has four messages, each other one has one."""
    def seconds(cost_s: float) -> float:
        net = Net(5)
        pairs = [(0, 3), (1, 3), (2, 3), (3, 4)]
        channels = [net.connect(*pair, message_s=cost_s) for pair in pairs]
        net.move(pairs, channels, 1)
        net.world.advance(net.world.now_ns + 100_000)
        return net.move(pairs, channels, SEGMENT)

    # The thread is busy with its own while theirs are sent; then three of theirs wait for it in
    # turn, where without a cost the third waits for the port to send two frames.
    ports_s = 2 * WIRE * 8 / 100e9
    assert seconds(COST_S) - seconds(0) == pytest.approx(4 * COST_S - ports_s, abs=5e-9)


def test_piece_may_be_several_messages_or_a_part_of_one() -> None:
    def seconds(messages: float) -> float:
        net = Net(2)
        channel = net.connect(0, 1, message_s=COST_S)
        net.move([(0, 1)], [channel], 1)
        net.world.advance(net.world.now_ns + 100_000)
        start_ns, run = net.world.now_ns, net.world.add_run(2, 1)
        net.world.advance()
        net.world.load(run, Stage([0], [1], [channel], [SEGMENT], [1], messages=messages))
        assert net.world.advance() == ("done", run)
        return (net.world.now_ns - start_ns) * 1e-9

    assert seconds(2.0) - seconds(0.5) == pytest.approx(2 * 1.5 * COST_S, abs=2e-9)


def test_thread_that_moves_bytes_handles_messages_meanwhile() -> None:
    """Its frames wait while it handles a message, unless others move the bytes."""
    def seconds(*, shared: bool) -> float:
        net = Net(2)
        thread = net.world.add_server()
        chain = net.world.add_chain([thread], [1 / 5e9])
        process = [net.world.add_process(1024, thread if shared else -1), net.process[1]]
        routes = [net.world.add_route([net.up[a], net.down[1 - a]]) for a in (0, 1)]
        channel = net.world.add_connection(
            End(process[0], chain, net.free), End(process[1], net.free, net.free), routes[:1],
            routes[1:], message_s=20e-6)
        return net.move([(0, 1)], [channel], 16 << 20, pieces=64)

    assert seconds(shared=True) - seconds(shared=False) == pytest.approx(64 * 20e-6, rel=0.15)


@pytest.mark.parametrize("cost", ["1us", "20us"])
def test_message_costs_move_packet_as_they_move_flow(tmp_path: Path, cost: str) -> None:
    """A ring of short messages over four hosts: 6 steps of two slices, sent and received."""
    built = cluster(tmp_path, hosts=4, stacks={"mine": {"base": "harp", "cost_per_message": cost}},
                    scenario={"stack": "mine", "channels": 1, "allreduce": "ring"})
    seconds = {}
    for fidelity in ("flow", "packet"):
        rows = measure(built, "allreduce", [4096, 4096], None, built.topology.scenarios[0],
                       Settings(fidelity=fidelity)).rows
        seconds[fidelity] = [row.time_s for row in rows if row.algorithm == "ring"][-1]
    assert seconds["packet"] == pytest.approx(seconds["flow"], rel=0.05)
