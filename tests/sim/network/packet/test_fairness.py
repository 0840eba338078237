"""HARP's congestion control among its own kind: flows into one port of 25 Gb/s share it."""

from __future__ import annotations

import numpy as np
import pytest

from sim.validation.fidelities import CASES, compare
from tests.sim.network.packet.fairness_scenes import Scene, run_scene
from tests.support.levels import long


@pytest.mark.parametrize("flows", [2, 4, 16, 64])
def test_flows_that_begin_together_are_fair_within_20_ms(flows: int) -> None:
    result = run_scene(Scene(flows))
    assert result.jain > 0.9
    assert result.fair_ms <= 20
    assert result.use > 0.95
    assert result.queue_us < 1000
    assert result.lost == 0


@pytest.mark.long
@pytest.mark.parametrize("scene", [
    *(Scene(flows, apart_ms=5) for flows in (2, 4, 16, 64)),
    Scene(16, last_ms=1000),
    *(Scene(flows, both=True) for flows in (2, 16)),
    Scene(60, hosts=1)], ids=str)
def test_late_comers_and_hosts_of_many_flows_get_their_share(scene: Scene) -> None:
    result = run_scene(scene)
    assert result.jain > 0.9
    assert result.use > 0.95
    assert result.lost == 0


@pytest.mark.parametrize("flows", [2, 16, 64])
def test_long_round_trips_get_their_share(flows: int) -> None:
    """In the mean: single seeds of 16 and 64 flows lie between 0.82 and 0.98."""
    results = [run_scene(Scene(flows, base_us=10, base_last_us=200, seed=seed))
               for seed in range(4)]
    assert np.mean([result.jain for result in results]) > 0.9
    assert min(result.use for result in results) > 0.95
    assert max(result.lost for result in results) == 0


@pytest.mark.parametrize("flows", [4, 8])
def test_flows_that_drain_more_seldom_are_not_taken_for_others(flows: int) -> None:
    """For 0.8 s: flows with short round trips began to compete after 0.3 s, most of their drains
    being alone.
    """
    result = run_scene(Scene(flows, base_us=10, base_last_us=200, seed=1), intervals=80)
    assert result.jain > 0.9
    assert result.lost == 0


@pytest.mark.parametrize("scene", [
    *(Scene(flows, mark_kb=160) for flows in (2, 16, 64)), Scene(64, mark_kb=160, apart_ms=2),
    Scene(64, mark_kb=160, seed=1), *(Scene(64, mark_kb=40, seed=seed) for seed in (0, 3)),
    Scene(16, mark_kb=160, last_ms=500), Scene(16, mark_kb=160, base_us=10, base_last_us=200)],
    ids=str)
def test_flows_below_a_threshold_of_marks_are_fair(scene: Scene) -> None:
    """64 flows have less than a frame a round trip each: DCTCP's law gave some a thirtieth."""
    result = run_scene(scene)
    assert result.jain > 0.9
    assert result.use > 0.95
    half_a_frame_each_kb = scene.flows * 4.2 / 2
    assert result.queue_us < 1.25 * max(scene.mark_kb, half_a_frame_each_kb) * 8 / scene.gbps


@long
@pytest.mark.parametrize("name", ["all-to-all, 16 MiB", "halving-doubling, 16 MiB"])
def test_marks_cost_short_bursts_of_few_flows_nothing(name: str) -> None:
    """Ports that mark, against the same that do not: eight draws of ECMP, which differ by 15 %.

    An all-to-all took 1.22 times as long, for marks made flows take queues at their own hosts,
    which do not mark, for as many times too long.
    """
    (case,) = (case for case in CASES if case.name == name)

    def taken_s(*changes: str) -> float:
        return sum(compare(case._replace(changes=(f"seed={seed}", *changes), without=())).packet_s
                   for seed in range(8))

    assert taken_s() < 1.05 * taken_s("fabric.switch.mark=100MB")


@pytest.mark.parametrize("scene", [
    *(Scene(flows, buffer_kb=200) for flows in (4, 16, 64)), Scene(16, buffer_kb=200, apart_ms=5),
    Scene(64, buffer_kb=200, apart_ms=2), Scene(64, buffer_kb=200, seed=1),
    Scene(4, buffer_kb=400, apart_ms=3, seed=1),
    Scene(8, buffer_kb=400, base_last_us=200, seed=1)], ids=str)
def test_flows_into_a_short_buffer_are_fair_and_lose_little(scene: Scene) -> None:
    """A buffer of 48 frames: 64 flows kept it full once, and lost 18 %."""
    result = run_scene(scene)
    assert result.jain > 0.9
    assert result.use > 0.95
    assert result.lost < 0.005
