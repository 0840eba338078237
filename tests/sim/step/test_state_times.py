"""What memory moves for parameters and the optimizer: seconds against a count by hand."""

from __future__ import annotations

import pytest

from sim.answer.scenario import Run
from tests.support.cluster_files import cluster

MEMORY = 0.8 * 2039e9
"""Bytes/s that kernels reach of an A100's memory."""
MODEL = {"layers": 4, "width": 1024, "heads": 16, "vocabulary": 1000, "head": "tied"}
ELEMENTS = 4 * (12 * 1024**2 + 4 * 1024) + 1000 * 1024 + 2 * 1024


def step_of(folder, gpus=4, sheet=None, **workload):
    """A job's layout and its seconds of compute; ``parallel`` among the keys is the scenario's."""
    scenario = {"parallel": workload.pop("parallel", "data")}
    made = cluster(folder, hosts=1, gpus=gpus, scenario=scenario, rate_bps=1e18, host={
        "gpus": {"count": gpus, "model": "A100"} | (sheet or {}),
        "nvlink": {"rate": "1000TB/s", "latency": "0s"}}, workload={
        "model": MODEL, "sequence": 512, "batch": 2, "framework": "free",
        "precision": "bf16"} | workload)
    run = Run(made, made.topology.scenarios[0], gpus)
    (row,) = run.go()
    return run.jobs[0], row


def test_the_model_has_the_elements_that_are_counted_here(tmp_path):
    assert step_of(tmp_path)[0].recipe.model.parameters == ELEMENTS


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_adam_moves_28_bytes_an_element(tmp_path, precision):
    """In 16 bits a gradient of 2 is read and a weight of 2 written for one of 4 that is read."""
    job, _ = step_of(tmp_path, precision=precision)
    assert job.update_s == pytest.approx(28 * ELEMENTS / MEMORY)


@pytest.mark.parametrize("parallel", ["zero1", "zero2", "fsdp"])
def test_a_gpu_updates_its_share(tmp_path, parallel):
    job, _ = step_of(tmp_path, parallel=parallel)
    assert job.update_s == pytest.approx(28 * ELEMENTS / 4 / MEMORY)


def test_a_tensor_group_splits_updates(tmp_path):
    job, _ = step_of(tmp_path, parallel={"tensor": 2})
    assert job.update_s == pytest.approx(28 * ELEMENTS / 2 / MEMORY)


@pytest.mark.parametrize(("parallel", "sums"), [("data", 2), ("zero1", 2), ("zero2", 0),
                                                ("fsdp", 0)])
def test_micro_steps_add_what_none_scatters(tmp_path, parallel, sums):
    """A sum of 16 bits reads two and writes one."""
    one, more = (step_of(tmp_path, parallel=parallel, accumulation=count)[0] for count in (1, 3))
    assert more.update_s - one.update_s == pytest.approx(sums * 6 * ELEMENTS / MEMORY)


def test_fused_products_add_by_themselves(tmp_path):
    one, more = (step_of(tmp_path, kernels="fused", accumulation=count)[0] for count in (1, 3))
    assert more.update_s == one.update_s > 0


def test_shards_without_another_gpu_scatter_nothing(tmp_path):
    job, _ = step_of(tmp_path, gpus=1, parallel="fsdp", accumulation=3)
    assert job.update_s == pytest.approx((2 * 6 + 28) * ELEMENTS / MEMORY)


def test_full_shards_are_laid_out_three_times_a_micro_step(tmp_path):
    """Two gathers and a scatter, each of 4 bytes an element of 16 bits."""
    passes = {}
    for parallel in ("zero2", "fsdp"):
        job, row = step_of(tmp_path, parallel=parallel, accumulation=3)
        passes[parallel] = row.breakdown.compute_s - job.update_s
    assert passes["fsdp"] - passes["zero2"] == pytest.approx(3 * 3 * 4 * ELEMENTS / MEMORY)


def test_a_given_speed_has_all_of_it(tmp_path):
    sheet = {"effective": "200TFLOPS"}
    kinds = [step_of(tmp_path, sheet=sheet, parallel=parallel, accumulation=3)
             for parallel in ("data", "fsdp")]
    assert [job.update_s for job, _ in kinds] == [0, 0]
    assert kinds[0][1].breakdown.compute_s == pytest.approx(kinds[1][1].breakdown.compute_s)


def test_tables_of_embeddings_are_not_updated_whole(tmp_path):
    """Few of their rows change; the rest of the model is."""
    job, _ = step_of(tmp_path, model="dlrm", precision="fp32", sequence=None)
    model = job.recipe.model
    assert 0 < model.replicated < model.of_tables
    assert job.update_s == pytest.approx(28 * model.replicated / MEMORY)


def test_an_update_ends_the_step_and_takes_no_efficiency(tmp_path):
    job, row = step_of(tmp_path, gpus=1, accumulation=3)
    assert row.step_s == pytest.approx(3 * job.work.compute_s + job.update_s)
    assert row.efficiency == pytest.approx(1)
