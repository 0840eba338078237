"""Steps that do not fit, and the nearest change that would."""

from __future__ import annotations

import pytest

from tests.sim.step.test_gpu_memory import EIGHT, command, file
from tests.support.sim_runs import rows_of


def test_a_step_that_does_not_fit_is_refused_with_what_would(tmp_path):
    result = command(tmp_path)
    assert result.exit_code == 2
    (sentence,) = result.stderr.strip().splitlines()
    assert "scenarios[0]: a step needs" in sentence
    assert "of the 80.0 GiB of a GPU (weights 15.0 GiB, gradients 15.0 GiB" in sentence
    assert "as with parallel: {shard: zero1}" in sentence
    gib = float(sentence.split("zero1} (")[1].split(" GiB")[0])
    (row,) = rows_of(file(tmp_path, scenario={"parallel": "zero1"}))
    assert row["memory_bytes"]["total"] / 2**30 == pytest.approx(gib, abs=0.05)


@pytest.mark.parametrize(("change", "keys"), [
    ({"flash": False, "sequence": 8192}, "flash: true"), ({"batch": 8}, "recompute: full"),
    ({"batch": 256, "recompute": "full"}, "batch: 16, accumulation: 16")])
def test_the_nearest_change_comes_first(tmp_path, change, keys):
    result = command(tmp_path, scenario={"parallel": "fsdp"},
                     workload=EIGHT["workload"] | change)
    assert result.exit_code == 2
    assert f"as with {keys} (" in result.stderr


def test_a_model_that_can_never_fit_is_refused(tmp_path):
    result = command(tmp_path, workload=EIGHT["workload"] | {"model": "llama3-405b"})
    assert result.exit_code == 2
    assert "less, with more GPUs or a smaller model" in result.stderr
