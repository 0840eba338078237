"""Equations of a ring in a stack's costs, by simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from sim.schema.parameters import load_stack
from tests.sim.calibration.test_nccl_log import EIGHT, hop_s, simulated
from tests.support.calibrate_runs import PAIR, TACO, derived, refused, run, save
from tests.support.nccl_samples import nccl_log, ring_time

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("stack", ["taco-tcp", "taco-harp"])
def test_a_log_of_our_own_simulator_gives_back_the_stack(tmp_path: Path, stack: str) -> None:
    path = save(tmp_path, nccl_log(simulated(stack), EIGHT))
    output = tmp_path / "out.yaml"
    found = derived(path, "--topology", TACO, "-o", output, stack=stack)
    truth = load_stack(stack)
    for name, row in found.items():
        assert row["value"] == pytest.approx(getattr(truth, name).value, rel=0.02), name
    assert set(found) == {"cost_per_byte", "start_latency", "cost_per_message"}


def test_without_a_topology_the_network_is_the_stacks(tmp_path: Path) -> None:
    document = yaml.safe_load(TACO.read_text(encoding="utf-8"))
    document["hosts"][0]["gpus"]["count"] = 1
    document = {key: document[key] for key in ("name", "hosts", "fabric", "workload")}
    document["scenarios"] = [{"name": "s", "stack": "taco-tcp-process"}]
    pair = save(tmp_path, yaml.safe_dump(document), "pair.yaml")
    log = save(tmp_path, nccl_log(simulated("taco-tcp-process", pair), PAIR))
    found, truth = derived(log, stack="taco-tcp-process"), load_stack("taco-tcp-process")
    assert found["cost_per_byte"]["value"] == pytest.approx(truth.cost_per_byte.value, rel=0.02)
    # PCIe twice 1 us and two links of 5 us.
    wanted_s = truth.start_latency.value + truth.cost_per_message.value + 12e-6
    assert hop_s(found, truth) == pytest.approx(wanted_s, rel=0.02)


def test_rows_at_the_networks_rate_say_nothing_of_the_cpu(tmp_path: Path) -> None:
    path = save(tmp_path, nccl_log(simulated("rdma"), EIGHT))
    result = run("--stack", "harp", "--from", path, "--topology", TACO)
    assert result.exit_code == 0, result.output
    assert "start_latency" in result.stdout
    assert "cost_per_byte" not in result.stdout
    assert "network's own rate" in result.stdout


def test_a_log_of_another_cluster_is_refused(tmp_path: Path) -> None:
    for hosts, says in ((PAIR, "2 ranks, and the topology has 16 GPUs"),
                        (PAIR[:1] * 4 + PAIR[1:] * 4 + ["c"] * 4 + ["d"] * 4, "names 4 hosts")):
        path = save(tmp_path, nccl_log(ring_time(1e-5, 1e-9, ranks=len(hosts)), hosts))
        assert says in refused(run("--stack", "harp", "--from", path, "--topology", TACO))
