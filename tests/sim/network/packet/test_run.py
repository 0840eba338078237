"""The pieces of collectives in the packet network."""

from __future__ import annotations

import pytest

from sim.network.packet.packet_world import Stage
from tests.sim.network.packet.packet_net import Net, serialised


def test_ring_takes_its_steps_at_line_rate() -> None:
    ranks, nbytes = 8, 16 << 20
    net = Net(ranks)
    pairs = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    channels = [net.connect(*pair) for pair in pairs]
    net.move(pairs, channels, 4 << 20, pieces=8)
    start_ns = net.world.now_ns
    run = net.world.add_run(ranks, 1)
    net.world.advance()
    steps, pieces = 2 * (ranks - 1), 4  # an allreduce; shards of 4 pieces
    feeds = [(rank - 1) % ranks for rank in range(ranks)]
    net.world.load(run, Stage(*zip(*pairs, strict=True), channels,
                              [nbytes // ranks * steps] * ranks, [steps * pieces] * ranks,
                              pieces, feeds, list(range(ranks))))
    assert net.world.advance() == ("done", run)
    took_s = (net.world.now_ns - start_ns) * 1e-9
    assert took_s == pytest.approx(serialised(nbytes // ranks * steps, net.rate), rel=0.04)
