"""Thirty-two hosts at 25 Gb/s, in packets: all to one, and a ring."""

from __future__ import annotations

import pytest

from tests.sim.network.packet.fairness_scenes import Scene, run_scene

HOSTS = 32


@pytest.mark.parametrize("scene", [
    Scene(HOSTS), Scene(HOSTS, mark_kb=160), Scene(HOSTS, buffer_kb=400)], ids=str)
def test_an_incast_of_many_hosts_is_fair_and_loses_little(scene: Scene) -> None:
    result = run_scene(scene)
    assert result.jain > 0.9
    assert result.use > 0.95
    assert result.lost < 0.005
    assert result.queue_us < 250  # T sqrt(32) = 141 us


@pytest.mark.parametrize("both", [False, True])
def test_a_ring_of_many_hosts_fills_every_port(both: bool) -> None:
    result = run_scene(Scene(HOSTS, ring=True, both=both), intervals=6)
    assert result.jain > 0.99
    assert result.use > (0.475 if both else 0.95)
    assert result.lost == 0
    assert result.queue_us < 50
