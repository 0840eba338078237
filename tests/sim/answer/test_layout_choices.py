"""Layouts of a step that a search may choose from."""

import pytest

from sim.answer.layout_choices import choices, samples_of
from sim.cluster.cluster import Cluster
from sim.schema import load
from sim.sweeps.layouts import Means, search
from sim.sweeps.study import Study
from tests.sim.sweeps.test_layouts import MODEL, cluster_file


@pytest.mark.parametrize(("flash", "recomputed"), [
    (True, {"none", "ops", "full"}), (False, {"none", "selective", "ops", "full"})])
def test_all_recomputations_are_tried_and_of_kernels_the_faster_ones(tmp_path, flash, recomputed):
    made = load(cluster_file(tmp_path, flash=flash, kernels="eager"))
    found, _ = choices(Cluster(made), made.scenarios[0], 8)
    assert {choice.workload["recompute"] for choice in found} == recomputed
    assert {choice.workload["kernels"] for choice in found} == {"fused"}


def test_layouts_that_do_not_fit_are_left_out(tmp_path):
    made = load(cluster_file(tmp_path, memory="1250MiB"))
    found, too_large = choices(Cluster(made), made.scenarios[0], 8)
    assert too_large > 0
    assert max(choice.memory for choice in found) <= 1250 << 20
    assert min(choice.memory for choice in found) > 1 << 30  # CUDA's context alone takes that


def test_every_layout_has_the_samples_of_the_file(tmp_path):
    path = cluster_file(tmp_path)
    made = load(path)
    assert samples_of(made, made.scenarios[0]) == 8
    for choice in choices(Cluster(made), made.scenarios[0], 8)[0]:
        copies = 4 // choice.layout.split
        assert copies * choice.batch * choice.accumulation == 8


@pytest.mark.parametrize("own", [1, 4])
def test_chunks_are_searched_where_tokens_travel(tmp_path, own):
    """Over a slow network several are faster. Those of the file leave no layout out."""
    model = MODEL | {"experts": {"count": 4, "top_k": 2, "ffn": 4096}}
    path = cluster_file(tmp_path, rate_bps=5e9, model=model, scenario={"expert_chunks": own})
    made = load(path)
    found, _ = choices(Cluster(made), made.scenarios[0], 8)
    tried = {choice.layout.gathers_experts: set() for choice in found}
    for choice in found:
        tried[choice.layout.gathers_experts].add(choice.chunks)
    assert tried == {False: {1, 2, 4, 8}, True: {1}}
    study = Study(str(path), path.read_bytes(), (made.scenarios[0].name,))
    two = [next(choice for choice in found if choice.text == text)
           for text in ("data", "4 chunks")]
    whole, quarters = (search(study, made.scenarios[0], made, [choice], 8, Means(60, workers=1),
                              lambda *_: None).front[0] for choice in two)
    assert quarters.speed > whole.speed
    assert quarters.choice.scenario == {"parallel": {}, "expert_chunks": 4}


def test_a_files_expert_overlap_leaves_no_layout_out(tmp_path_factory):
    """It stays where tokens are sent in one micro-step and another computes."""
    model = MODEL | {"experts": {"count": 4, "top_k": 2, "ffn": 4096}}
    files = [cluster_file(tmp_path_factory.mktemp(name), rate_bps=5e9, accumulation=2,
                          model=model, scenario=given)
             for name, given in (("plain", {}), ("hides", {"expert_overlap": "micro-steps"}))]
    plain, hides = (choices(Cluster(made), made.scenarios[0], 8)[0] for made in map(load, files))
    assert ({(each.text, *each.workload.values()) for each in plain}
            == {(each.text, *each.workload.values()) for each in hides})
    for each in hides:
        hidden = each.workload["accumulation"] > 1 and not each.layout.gathers_experts
        assert each.scenario.get("expert_overlap", "none") == ("micro-steps" if hidden else "none")
    made = load(files[1])
    study = Study(str(files[1]), files[1].read_bytes(), (made.scenarios[0].name,))
    found = search(study, made.scenarios[0], made, hides[::len(hides) // 4], 8,
                   Means(60, workers=1), lambda *_: None)
    assert (found.refused, found.open) == (0, 0)
    for row in found.front:
        assert row.row["memory_bytes"] == row.choice.memory
