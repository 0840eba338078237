"""Intervals: what is drawn, how it is distributed, and that draws say what single changes say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.answer.answer import answer
from sim.answer.margins import TRAINING
from sim.answer.scenario import Settings, run_scenario
from sim.answer.uncertainty import (
    DRAWS,
    EFFORT,
    FEWEST_DRAWS,
    PORTS,
    Unknown,
    affordable_draws,
    causes,
    halton,
    settle,
    spread,
    unknowns,
)
from sim.cluster import placement
from sim.cluster.cluster import Cluster
from sim.network.flow import flow_communicator as communicator
from sim.records.results import Interval
from sim.schema import load
from sim.step import recipe
from tests.support.cluster_files import FREE, IDEAL, cluster, topology, write


def figure(value, low, high, confidence="published"):
    return {"value": value, "low": low, "high": high, "confidence": confidence, "source": "us"}


RATE = {"flow_rate": figure("10Gbps", "5Gbps", "20Gbps", "assumed")}
"""A ring between two hosts takes 2 to 8 times as long as VGG16's compute leaves it."""


def uncertain(folder, **more):
    return cluster(folder, **{"stacks": {"ideal": IDEAL | RATE}} | more)


def interval(made, **options):
    return spread(made, [(made.topology.scenarios[0], made.gpus)], workers=1, **options)[0]


@pytest.mark.parametrize("confidence", ["assumed", "published"])
@given(share=st.floats(0, 1), ends=st.tuples(*[st.floats(1e-12, 1e12)] * 3))
def test_quantiles_stay_within_the_interval_and_rise(confidence, share, ends):
    low, value, high = sorted(ends)
    unknown = Unknown("x", low, value, high, confidence)
    found = unknown.quantile(share)
    assert low * (1 - 1e-9) <= found <= high * (1 + 1e-9)
    assert found <= unknown.quantile(min(share + 0.1, 1.0)) * (1 + 1e-9)


@pytest.mark.parametrize("confidence", ["measured", "assumed"])
def test_a_value_is_the_median_of_its_distribution(confidence):
    assert Unknown("x", 1, 2, 100, confidence).quantile(0.5) == pytest.approx(2)
    assert Unknown("x", 0, 1, 4, confidence).quantile(0.5) == pytest.approx(1)
    assert Unknown("x", 0, 1, 1, confidence).quantile(0.6) == 1


def test_estimates_are_likelier_near_their_value_and_assumptions_are_not():
    assert Unknown("x", 0, 1, 4, "assumed").quantile(0.25) == pytest.approx(0.5)
    assert Unknown("x", 0, 1, 4, "assumed").quantile(0.75) == pytest.approx(2.5)
    assert Unknown("x", 0, 1, 4, "measured").quantile(0.125) == pytest.approx(0.5)
    assert Unknown("x", 0, 1, 4, "measured").quantile(0.875) == pytest.approx(2.5)


def test_points_fill_every_dimension_evenly():
    points = halton(24, 12, 1)
    assert points.min() >= 0
    assert points.max() < 1
    for dimension in range(12):
        counts, _ = np.histogram(points[:, dimension], 4, (0, 1))
        assert counts.min() >= 3, dimension
    assert np.abs(np.corrcoef(points.T) - np.eye(12)).max() < 0.6
    np.testing.assert_array_equal(halton(8, 12, 1), points[:8])
    assert not np.array_equal(halton(24, 12, 2), points)


def test_a_parameter_of_a_base_is_one_unknown(tmp_path):
    mine = {"base": "ideal"}
    made = cluster(tmp_path, stacks={"ideal": IDEAL | RATE, "mine": mine},
                   scenario={"stack": "mine"}, frameworks={"free": FREE | {
                       "overlap": figure(1.0, 0.5, 1.0)}})
    names = [unknown.name for unknown in unknowns(made.topology)]
    assert {"ideal.flow_rate", "free.overlap", "rdma.memory_per_byte"} <= set(names)
    assert not [name for name in names if name.startswith("mine.")]


def test_quantiles_are_those_of_the_parameter_where_one_decides(tmp_path):
    """Images/s rise with the rate, so that their P10 is the answer at the rate's P10."""
    made = uncertain(tmp_path)
    scenario = made.topology.scenarios[0]
    (found,) = interval(made, draws=64)
    unknown = unknowns(made.topology)[0]
    for share, rate in ((0.1, found.low_images_per_s), (0.5, found.median_images_per_s),
                        (0.9, found.high_images_per_s)):
        alone = run_scenario(made, scenario, 2, Settings({unknown.name: unknown.quantile(share)}))
        assert rate == pytest.approx(alone[0].images_per_s, rel=0.04)
    assert found.draws == 64
    assert not found.refitted


def test_the_answer_at_the_values_is_the_median_where_one_parameter_decides(tmp_path):
    """Jitter can only cost, and its interval reaches far to one side."""
    made = cluster(tmp_path, gpus=8, frameworks={"free": FREE | {
        "jitter": figure(0.005, 0.0, 0.02, "assumed")}})
    (found,) = interval(made, draws=32)
    (alone,) = run_scenario(made, made.topology.scenarios[0], made.gpus)
    assert found.low_images_per_s < 0.995 * found.high_images_per_s
    assert found.median_images_per_s == pytest.approx(alone.images_per_s, rel=1e-3)


@given(low=st.floats(1, 1e6), wide=st.floats(1, 10), answer=st.floats(0.1, 1e7),
       exposed=st.floats(0, 100))
def test_an_answer_always_lies_in_its_own_interval(low, wide, answer, exposed):
    """Wherever the draws lie; and the margin only widens what they span, and moves P50 within."""
    found = settle(Interval(low, low * wide, low * wide, 0.1, 0.2, 0.3, 24, samples=16.0),
                   answer, exposed)
    assert found.low_images_per_s <= min(low, answer)
    assert found.high_images_per_s >= max(low * wide, answer)
    assert found.low_exposed_s <= exposed <= found.high_exposed_s
    assert 0 <= found.low_exposed_s <= 0.1
    assert found.high_exposed_s >= 0.3
    assert found.low_images_per_s <= found.median_images_per_s <= found.high_images_per_s
    assert found.median_images_per_s == pytest.approx(
        max(low * wide * math.exp(TRAINING.middle), low * math.exp(-TRAINING.below)))
    assert found.low_exposed_s <= found.median_exposed_s <= found.high_exposed_s


def test_every_row_of_a_file_lies_in_its_own_interval(tmp_path):
    """All that is unknown can only cost here, so that draws lie below the answer."""
    costly = {"jitter": figure(0.0, 0.0, 0.2, "assumed"),
              "step_overhead": figure("0s", "0s", "1s", "assumed")}
    made = cluster(tmp_path, gpus=4, frameworks={"free": FREE | costly})
    (found,) = spread(made, [(made.topology.scenarios[0], 8)], workers=1)[0]
    (result,) = answer(made, made.topology.scenarios).scenarios
    assert found.high_images_per_s < result.images_per_s
    _, middle, high = TRAINING.move(found.low_images_per_s, found.median_images_per_s,
                                    found.high_images_per_s)
    assert result.interval.median_images_per_s == middle
    assert result.interval.high_images_per_s == max(high, result.images_per_s)
    assert result.interval.low_images_per_s < found.low_images_per_s
    assert result.interval.low_exposed_s <= result.breakdown.exposed_s


def test_a_figure_that_nothing_moves_has_no_interval(tmp_path):
    assert interval(cluster(tmp_path)) == [None]
    made = uncertain(tmp_path)
    assert spread(made, [(made.topology.scenarios[0], 1)], workers=1) == [[None]]


def test_workers_change_nothing(tmp_path):
    made = uncertain(tmp_path)
    rows = [(made.topology.scenarios[0], 2)]
    assert spread(made, rows, 8, workers=2) == spread(made, rows, 8, workers=1)


@pytest.mark.parametrize("style", [{"allreduce": "ring"}, {"allreduce": "tree"},
                                   {"allreduce": "2d", "channels": 2}, {"allreduce": "nccl"},
                                   {"allreduce": "halving-doubling"}, {"parallel": "fsdp"}])
def test_what_simulations_keep_for_each_other_changes_no_answer(tmp_path, monkeypatch, style):
    """Bit for bit: plans, phases on channels and ranks are kept, since no figure is in them."""
    made = uncertain(tmp_path, gpus=4, nic={"count": 2}, scenario=style)
    kept = interval(made, draws=4)
    simulations = []

    def forget_and_run(*arguments):
        simulations.append(arguments)
        for cache in (communicator._kept_layout, recipe._made, recipe._nccls):
            cache.cache_clear()
        for known in (communicator._laid, placement._kept):
            known.clear()
        return run_scenario(*arguments)

    monkeypatch.setattr("sim.answer.uncertainty.run_scenario", forget_and_run)
    assert interval(made, draws=4) == kept
    assert len(simulations) == 4


def test_each_of_several_jobs_has_its_own(tmp_path):
    made = cluster(tmp_path, hosts=4, stacks={"ideal": IDEAL | RATE}, jobs=[
        {"name": "a", "hosts": ["h-0", "h-1"]},
        {"name": "b", "hosts": ["h-2", "h-3"], "workload": {
            "model": "resnet50", "batch": 8, "framework": "free"}}])
    (first, second), = [interval(made, draws=8)]
    assert first.high_images_per_s > 1.2 * first.low_images_per_s
    assert second.median_images_per_s != first.median_images_per_s


def test_other_source_ports_spread_flows_otherwise(tmp_path):
    """Four hosts under each of two leaves, two spines: how many flows collide is chance."""
    made = cluster(tmp_path, hosts=8, rate_bps=10e9, scenario={"allreduce": "halving-doubling"},
                   fabric={"template": "leaf-spine", "leaves": 2, "spines": 2, "rate": "20Gbps"})
    (found,) = interval(made, draws=16)
    assert found.high_images_per_s > 1.05 * found.low_images_per_s
    (due,), = causes(made, [(made.topology.scenarios[0], 8)], workers=1)
    assert [cause.parameter for cause in due] == [PORTS]


def test_causes_are_ranked_by_what_they_move(tmp_path):
    made = uncertain(tmp_path, frameworks={"free": FREE | {
        "overlap": figure(1.0, 0.5, 1.0), "cast_per_element": figure("1us", "1ns", "1s")}})
    (due,), = causes(made, [(made.topology.scenarios[0], 2)], workers=1)
    assert [cause.parameter for cause in due] == ["ideal.flow_rate", "free.overlap"]
    assert due[0].at_low < due[0].at_high
    assert due[0].low == pytest.approx(5e9 * 4**0.1)


def test_draws_agree_with_what_is_fitted(tmp_path):
    """The row is fitted by the rate: whatever the overlap is, it comes out as published."""
    given = topology(stacks={"ideal": IDEAL | RATE}, frameworks={"free": FREE | {
        "overlap": figure(1.0, 0.0, 1.0, "assumed")}})
    row = {"scenario": "s", "gpus": 2, "kind": "fitted", "within": 0.02, "source": "us",
           "fits": "ideal.flow_rate"}
    plain = run_scenario(Cluster(load(write(tmp_path, given))), load(write(
        tmp_path, given)).scenarios[0], 2)[0].images_per_s
    fitted = Cluster(load(write(tmp_path, given | {"expect": [row | {"images_per_s": plain}]})))
    assert interval(fitted, draws=8) == [None]
    elsewhere = Cluster(load(write(tmp_path, given | {"expect": [
        row | {"images_per_s": 2 * plain}]})))
    (found,) = interval(elsewhere, draws=8)
    assert not found.refitted


def test_the_number_of_draws_follows_from_the_effort():
    assert affordable_draws(0) == affordable_draws(100) == DRAWS
    assert FEWEST_DRAWS <= affordable_draws(EFFORT // 10) < DRAWS
    assert affordable_draws(EFFORT) == 0


def test_effort_counts_what_a_large_cluster_adds_to_each_event(tmp_path):
    """The events are as many, but each handles more edges."""
    small, large = (run_scenario(made, made.topology.scenarios[0], made.gpus)[0].effort
                    for made in (cluster(tmp_path, hosts=2), cluster(tmp_path, hosts=512)))
    assert large > 3 * small


def test_gaps_of_a_data_sheet_are_drawn(tmp_path):
    """Of GPUs that the file knows by name alone; a share that it gives is no unknown."""
    def drawn(**gpus):
        made = cluster(tmp_path, hosts=1, gpus=1, host={"gpus": {"count": 1} | gpus}, workload={
            "model": "gpt2", "batch": 8, "framework": "free", "precision": "bf16"})
        (found,) = spread(made, [(made.topology.scenarios[0], 1)])[0]
        names = {unknown.name for unknown in unknowns(made.topology)}
        return found, "gpus.utilisation" in names

    interval, named = drawn(model="A100")
    assert named
    slow, fast = 0.7 / 0.73, 0.8 / 0.73
    point = interval.median_images_per_s
    assert slow < interval.low_images_per_s / point < 1 < interval.high_images_per_s / point < fast
    for speed in ({"utilisation": 0.73}, {"effective": "200TFLOPS"}):
        assert drawn(model="A100", **speed) == (None, False)


def test_only_collectives_alone_draw_the_launch(tmp_path):
    """It comes last, so that draws of training stay what they are without it."""
    launch = {"value": "10us", "low": "5us", "high": "40us", "confidence": "published",
              "source": "a test"}
    made = cluster(tmp_path, stacks={"ideal": IDEAL | {"launch": launch}}).topology
    training, alone = unknowns(made), unknowns(made, alone=True)
    assert alone[:-1] == training
    assert alone[-1].name == "ideal.launch"
