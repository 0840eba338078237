"""A host that launches kernels one by one, on steps small enough to work out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.schema.parallel_keys import Parallel
from sim.step.groups import Groups
from sim.step.launches import launching
from sim.workloads.layers import Layer
from tests.sim.step.test_mixture import EXPERTS, run, workload
from tests.sim.step.test_train import job, layer, parts_of, step_of
from tests.support.cluster_files import FREE


@pytest.mark.parametrize(("launch_s", "wanted_s"), [(0, 6), (0.9, 6), (1.5, 7), (4, 16)])
def test_a_pass_takes_what_its_launches_take_where_that_is_longer(tmp_path, launch_s, wanted_s):
    """Of two layers: 2 s forward and 4 s backward on the GPU, twice a launch on the host."""
    made = job(tmp_path, [layer("a", 0), layer("b", 0)], gpus=1,
               costs={"launch_per_layer": launch_s})
    assert step_of(made) == pytest.approx(wanted_s)
    assert parts_of(made) == pytest.approx({"compute_s": wanted_s})
    waits_s = [span.end_s - span.start_s for span in made.spans if span.kind == "launch"]
    assert sum(waits_s) == pytest.approx(wanted_s - 6)


@pytest.mark.parametrize("micro", [2, 5])
def test_each_micro_step_is_launched(tmp_path, micro):
    made = job(tmp_path, [layer("a", 0), layer("b", 0)], gpus=1, accumulation=micro,
               costs={"launch_per_layer": 1.5})
    assert step_of(made) == pytest.approx(7 * micro)


def test_the_host_launches_while_collectives_run(tmp_path):
    """b's gradients travel from 6 to 9 s; the backward pass, of 4 s, is launched by 10 s."""
    made = job(tmp_path, [layer("a", 0), layer("b", 3)], costs={"launch_per_layer": 2.5})
    assert step_of(made) == pytest.approx(10)


@pytest.mark.parametrize(("experts", "ranks"), [(8, 4), (8, 1), (6, 4)])
def test_each_expert_of_a_gpu_has_products_of_its_own(tmp_path, experts, ranks):
    """Router and experts are layers; ten modules are beside them. Gate and up are one product."""
    layers = [layer("norm", 0), layer("router", 0), Layer("experts", experts=experts, top_k=2)]
    made = job(tmp_path, layers, costs={"launch_per_layer": 1.0, "launch_per_product": 0.01})
    own = -(-experts // ranks)
    needed = launching(made.recipe, Groups(Parallel(), ranks, ranks))
    assert needed == pytest.approx((13 + 0.02 * own, 13 + 0.04 * own))
    again = launching(replace(made.recipe, recompute="full"), Groups(Parallel(), ranks, ranks))
    assert again == pytest.approx((13 + 0.02 * own, 26 + 0.06 * own))


@pytest.mark.parametrize("parallel", ["data", "fsdp", "zero1", {"pipeline": 2}, {"tensor": 2},
                                      {"context": 2}])
def test_no_split_of_a_model_escapes_its_launches(tmp_path, parallel):
    """With launches of 1 s each nothing else takes time, and two stages launch half each."""
    free = FREE | {"launch_per_layer": "1s"}
    made, result = run(tmp_path, scenario={"parallel": parallel}, frameworks={"free": free},
                       **workload(EXPERTS, accumulation=4))
    passes_s = sum(launching(made.recipe, made.groups))
    bubble_s = passes_s if parallel == {"pipeline": 2} else 0
    assert result.breakdown.step_s == pytest.approx(4 * passes_s + bubble_s, rel=0.1)
    assert result.efficiency is None or result.efficiency < 1 + 1e-9
