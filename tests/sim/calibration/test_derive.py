"""Parameters of a host stack out of measured times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.calibration.derive import Equation, derive, estimate
from sim.schema.parameters import load_stack
from tests.sim.calibration.test_measurements import stream
from tests.support.calibrate_runs import derived, save
from tests.support.nccl_samples import SIZES

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


@given(st.integers(0, 2**32), st.floats(1e-6, 1e-3), st.floats(1e-11, 1e-8))
@settings(max_examples=10, deadline=None)
def test_exact_times_give_exact_values(seed: int, alpha: float, beta: float) -> None:
    size = np.array(SIZES, np.float64)
    design = np.stack([np.full_like(size, 2.0), size], axis=1)
    found = estimate(design, design @ [alpha, beta])
    assert found.values == pytest.approx([alpha, beta], rel=1e-6)
    assert found.low == pytest.approx(found.high, rel=1e-5)


def noisy(seed: int, noise: float = 0.05) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    size = np.array(SIZES, np.float64)
    design = np.stack([np.full_like(size, 2.0), size], axis=1)
    error = np.random.default_rng(seed).normal(0, noise, len(size))
    return design, design @ [30e-6, 1e-9] * (1 + error)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    held = []
    for seed in range(40):
        found = estimate(*noisy(seed))
        held.append((found.low <= [30e-6, 1e-9]) & (found.high >= [30e-6, 1e-9]))
    assert np.mean(held) > 0.85  # they say 0.95; the errors are few and their tails are cut


def test_a_few_wild_rows_do_not_pull() -> None:
    design, times = noisy(7, 0.02)
    times[[3, 20]] *= 5
    assert estimate(design, times).values == pytest.approx([30e-6, 1e-9], rel=0.05)


def test_values_are_never_negative_and_equal_data_give_equal_intervals() -> None:
    design, times = noisy(1)
    found = estimate(design, times - 59e-6)
    assert found.low.min() >= 0.0
    again = estimate(design, times - 59e-6)
    assert (found.low.tolist(), found.high.tolist()) == (again.low.tolist(), again.high.tolist())


def test_all_kinds_together_give_every_parameter(tmp_path: Path) -> None:
    base = load_stack("harp")
    truth = {"cost_per_byte": 0.2e-9, "cost_per_packet": 0.3e-6, "cost_per_message": 2e-6,
             "start_latency": 15e-6, "flow_rate": 12e9}

    def core_s(mtu: int) -> float:
        payload = mtu - (base.headers.value - 38)
        return truth["cost_per_byte"] + truth["cost_per_packet"] / payload

    rows: list[dict[str, Any]] = [stream(core_s(mtu), mtu, cores=cores)
                                  for mtu in (1500, 3400, 9000) for cores in (1.0, 0.7)]
    for size in (8, 512, 4096):
        message = truth["cost_per_message"] + size * core_s(1500)
        rows.append({"kind": "messages", "size_bytes": size, "time_s": message})
        rows.append({"kind": "pingpong", "size_bytes": size,
                     "time_s": 2 * (message + truth["start_latency"])})
    rows += [{"kind": "stream", "rate_bps": flows * truth["flow_rate"], "flows": flows}
             for flows in (1, 2, 4, 8)]
    rows.append({"kind": "stream", "size_bytes": 10**9,
                 "time_s": 8e9 / truth["flow_rate"], "flows": 1})
    found = derived(save(tmp_path, rows))
    assert {name: row["value"] for name, row in found.items()} == pytest.approx(truth, rel=1e-3)


def test_indistinguishable_parameters_keep_the_base_s_value(tmp_path: Path) -> None:
    base = load_stack("harp")
    found = derived(save(tmp_path, [stream(1e-9, 1500)] * 5))
    assert set(found) == {"cost_per_byte"}
    assert found["cost_per_byte"]["value"] == pytest.approx(
        1e-9 - base.cost_per_packet.value / 1428, rel=1e-6, abs=0)
    ping = {"kind": "pingpong", "size_bytes": 8, "time_s": 60e-6}
    found = derived(save(tmp_path, [ping] * 4))
    assert set(found) == {"start_latency"}
    assert found["start_latency"]["value"] == pytest.approx(
        30e-6 - base.cost_per_message.value, rel=1e-3)


def test_rows_without_any_cost_of_the_stack_are_refused() -> None:
    with pytest.raises(ValueError, match="do not depend on the stack"):
        derive([], [], load_stack("harp"))


def test_equations_count_the_given_multiply_adds() -> None:
    equation = Equation(1.0, {"cost_per_byte": 2.0})
    assert equation.cost_s(("cost_per_byte", "cost_per_packet"),
                           {"cost_per_byte": 3.0, "cost_per_packet": 5.0}) == 6.0
