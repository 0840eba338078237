"""The file of a traced model as a workload."""


import pytest
import yaml

from sim.schema import TopologyError, load
from sim.schema.model_file import read_model_file
from tests.support.cluster_files import topology, write
from tests.support.sim_runs import rows_of

LAYERS = [{"name": f"l{number}", "block": f"b{number}", "forward_flops": 10**9,
           "backward_flops": 2 * 10**9, "kept": 10**6, "tensors": {f"w{number}": 10**6}}
          for number in range(4)]


def model_file(folder, layers=LAYERS, name="model.yaml", **keys):
    (folder / name).write_text(yaml.safe_dump(
        {"name": "m", "source": "a test", "sample": "a thing", "between_blocks": 1000,
         "layers": layers} | keys))


def cluster(folder, *, host=None, scenario=None, **workload):
    path = write(folder, topology(host=host, gpus=2, workload={
        "model": "model.yaml", "batch": 8, "framework": "free"} | workload, scenario=scenario))
    return load(path)


def answer(folder, **keys):
    cluster(folder, **keys)
    return rows_of(folder / "t.yaml")[0]


def test_a_file_is_trained_as_any_model(tmp_path):
    """Compute by hand: 8 samples of 12 GFLOP at 100 TFLOP/s."""
    model_file(tmp_path)
    network = cluster(tmp_path).workload.network
    assert network.parameters == 4 * 10**6
    assert answer(tmp_path)["breakdown_ms"]["compute"] == pytest.approx(
        8 * 12e9 / 100e12 * 1e3, rel=1e-3)


def test_measured_times_are_taken_as_they_are(tmp_path):
    """By hand: 8 samples of 4 x 3 ms, whatever the GPU's rate, and half where two GPUs share."""
    model_file(tmp_path, [layer | {"forward_s": 1e-3, "backward_s": 2e-3} for layer in LAYERS])
    assert answer(tmp_path)["breakdown_ms"]["compute"] == pytest.approx(96, rel=1e-3)
    assert answer(tmp_path, recompute="full")["breakdown_ms"]["compute"] == pytest.approx(
        8 * 4 * 4, rel=1e-3)
    for parallel in ("fsdp", {"tensor": 2}):
        found = answer(tmp_path, scenario={"parallel": parallel})["breakdown_ms"]["compute"]
        assert found == pytest.approx(96 if parallel == "fsdp" else 48, rel=1e-3)


def test_activations_are_those_of_the_file(tmp_path):
    """By hand: 8 samples keep 4 layers of a million elements; recomputed they keep what goes from
    block to block, and one block."""
    model_file(tmp_path)
    gpu = {"gpus": {"count": 2, "model": "A100", "effective": "100TFLOPS"}}

    def kept(**keys):
        memory = answer(tmp_path, host=gpu, precision="bf16", **keys)["memory_bytes"]
        return memory["activations"] / 2**30

    assert kept() == pytest.approx(2 * 8 * 4e6 / 2**30, rel=1e-3)
    assert kept(recompute="full") == pytest.approx(2 * 8 * (4 * 1000 + 1e6) / 2**30, rel=1e-3)
    model_file(tmp_path, [layer | {"scores": 10**6, "masks": 10**6} for layer in LAYERS])
    assert kept() == pytest.approx(8 * 4 * (2e6 + 1e6) / 2**30, rel=1e-3)
    assert kept(flash=False) == pytest.approx(8 * 4 * (4e6 + 1e6) / 2**30, rel=1e-3)


def test_a_pipeline_splits_blocks_that_are_alike(tmp_path):
    model_file(tmp_path)
    parallel = {"scenario": {"parallel": {"pipeline": 2}}, "accumulation": 4}
    assert answer(tmp_path, **parallel)["images_per_s"] > 0
    model_file(tmp_path, between_blocks=0)
    with pytest.raises(TopologyError, match="no row of like transformer blocks"):
        cluster(tmp_path, **parallel)


@pytest.mark.parametrize(("layers", "keys", "says"), [
    ([LAYERS[0] | {"flops": 3}], {}, r"model.yaml:\d+: layers\[0\].flops: unknown key 'flops'"),
    ([LAYERS[0] | {"tensors": [3]}], {}, "a mapping of names of parameters"),
    ([LAYERS[0] | {"tensors": {"w": 0}}], {}, "tensors"),
    ([{"name": "l", "forward_flops": 1}], {}, "no layer has a parameter"),
    ([LAYERS[0] | {"tables": {"t": 9}, "lookups": 3}], {}, r"layers\[0\]: has no looked_up"),
    ([{"name": "l", "tensors": {"w": 1}}], {}, "no layer computes"),
    ([], {}, "layers"), (LAYERS, {"tokens": -1}, "tokens"),
    (LAYERS, {"sequence": 3}, "samples of one size; allowed: no sequence$")])
def test_a_mistake_in_the_file_is_one_sentence_with_its_place(tmp_path, layers, keys, says):
    own = {key: value for key, value in keys.items() if key != "sequence"}
    model_file(tmp_path, layers, **own)
    with pytest.raises(TopologyError, match=says) as caught:
        cluster(tmp_path, **{key: keys[key] for key in keys if key == "sequence"})
    assert caught.value.key.startswith("workload")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TopologyError, match="No such file"):
        cluster(tmp_path)


def test_tables_are_spread_and_looked_up(tmp_path):
    tables = {"name": "ids", "tables": {"users": 3200, "items": 6400}, "lookups": 5,
              "looked_up": 160}
    model_file(tmp_path, [tables, *LAYERS])
    found = read_model_file(tmp_path / "model.yaml").network.layers[0]
    assert (found.lookups, found.alltoall_elements, found.parameters) == (5, 160, 9600)
    assert not found.tensors
