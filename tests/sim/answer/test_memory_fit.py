"""Steps that do not fit, and the nearest change that would."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.sim.step.test_gpu_memory import EIGHT, OWN, command, file
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


def test_the_outer_optimizers_state_is_in_what_would_fit(tmp_path):
    """Shards of 29 B parameters fit into a host, but not with DiLoCo's anchor and momentum."""
    workload = EIGHT["workload"] | {"model": OWN | {"layers": 130}, "recompute": "full"}
    assert rows_of(file(tmp_path, workload=workload, hosts=1, scenario={"parallel": "fsdp"}))
    result = command(tmp_path, workload=workload,
                     scenario={"parallel": "fsdp", "sync": {"every": 30}})
    assert result.exit_code == 2
    assert "with more GPUs in each host, no sync, or a smaller model" in result.stderr


SMALL = {"gpus": {"count": 8, "model": "any", "effective": "100TFLOPS", "memory": "22GB"}}
TIGHT = [
    {"parallel": {"shard": "hsdp", "replicate": 16}}, {"parallel": {"shard": "hsdp"}},
    {"parallel": "fsdp", "sync": {"every": 30}}, {"parallel": "fsdp", "allreduce": "ring"},
    {"allreduce": "2d"}, {"parallel": {"pipeline": 2, "interleave": 8}},
    {"parallel": {"context": 4, "shard": "fsdp"}}, {"parallel": "hsdp", "allreduce": "ring"}]


@pytest.mark.parametrize("scenario", TIGHT)
@pytest.mark.parametrize("own", [OWN, OWN | {"heads": 12, "kv_heads": 4, "width": 3072},
                                 OWN | {"experts": {"count": 4, "top_k": 2, "ffn": 4096}}])
def test_what_a_refusal_names_is_accepted(tmp_path, own, scenario):
    """Whatever is named as the nearest change is tried: it is allowed, and it fits."""
    workload = EIGHT["workload"] | {"model": own, "batch": 6, "sequence": 2048, "accumulation": 2}
    given = {"host": SMALL, "workload": workload, "scenario": scenario}
    result = command(tmp_path, **given)
    assert result.exit_code == 2, result.output
    named = re.search(r"as with (.*) \(([\d.]+) GiB\)$", result.stderr.strip())
    if named is None:
        assert "a smaller model" in result.stderr
        return
    keys = yaml.safe_load(f"{{{named[1]}}}")
    layout = keys.pop("parallel", {})
    old = scenario.get("parallel", {})
    old = {"shard": old} if isinstance(old, str) else old
    changed = given | {"workload": workload | keys,
                       "scenario": scenario | {"parallel": old | layout}}
    (row,) = rows_of(file(tmp_path, **changed))
    assert row["memory_bytes"]["total"] / 2**30 == pytest.approx(float(named[2]), abs=0.05)
