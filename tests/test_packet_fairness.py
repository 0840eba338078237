"""HARP's congestion control among its own kind: flows into one port of 25 Gb/s share it."""

from __future__ import annotations

import pytest
from packet_fairness import Scene, run_scene


@pytest.mark.parametrize("flows", [2, 4, 16, 64])
def test_flows_that_begin_together_are_fair_within_20_ms(flows: int) -> None:
    result = run_scene(Scene(flows))
    assert result.jain > 0.9
    assert result.fair_ms <= 20
    assert result.use > 0.95
    assert result.queue_us < 1000
    assert result.lost == 0


@pytest.mark.parametrize("scene", [
    *(Scene(flows, apart_ms=5) for flows in (2, 4, 16, 64)),
    Scene(16, last_ms=1000),
    *(Scene(flows, base_us=10, base_last_us=200) for flows in (2, 16, 64)),
    *(Scene(flows, both=True) for flows in (2, 16)),
    Scene(60, hosts=1)], ids=str)
def test_late_comers_long_round_trips_and_hosts_of_many_flows_get_their_share(scene: Scene) -> None:
    result = run_scene(scene)
    assert result.jain > 0.9
    assert result.use > 0.95
    assert result.lost == 0
