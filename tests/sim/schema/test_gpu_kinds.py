"""GPUs by their data sheets."""

import pytest

from sim.schema import TopologyError, load
from sim.schema.gpu_kinds import memory_of
from tests.support.cluster_files import topology, write


def rate(folder, gpus, precision="bf16"):
    made = load(write(folder, topology(host={"gpus": {"count": 1} | gpus}, workload={
        "model": "gpt2", "batch": 1, "framework": "free", "precision": precision})))
    return made.hosts[0].gpus.sustained(precision)


@pytest.mark.parametrize(("precision", "tflops"), [("fp32", 19.5), ("tf32", 156), ("bf16", 312),
                                                   ("fp16", 312)])
def test_a_known_gpu_computes_as_its_data_sheet_says(tmp_path, precision, tflops):
    """NVIDIA A100 data sheet, dense."""
    sheet = {"model": "A100-SXM4-40GB", "utilisation": "100%"}
    assert rate(tmp_path, sheet, precision) == pytest.approx(tflops * 1e12)
    assert rate(tmp_path, sheet | {"utilisation": 0.25}, precision) == tflops * 1e12 / 4
    given = {"model": "A100", "effective": "1TFLOPS"}
    assert rate(tmp_path, given, precision) == 1e12


@pytest.mark.parametrize(("model", "gib"), [("A100", 80), ("A100-SXM4-40GB", 40), ("any", None),
                                            ("NVIDIA H100 80GB HBM3", 80), ("A10G", 22.5),
                                            ("V100 16GB", 16), ("RTX3090", 24),
                                            ("NVIDIA GH200 480GB", 96), ("GH200 144GB", 144),
                                            ("AMD Instinct MI325X", 256), ("NVIDIA GB300", 278)])
def test_memory_is_that_of_the_model_or_of_its_name(model, gib):
    found = memory_of(model)
    assert found is None if gib is None else found / 2**30 == pytest.approx(gib, rel=0.01)


@pytest.mark.parametrize(("model", "tflops", "gbs"), [
    ("NVIDIA A100-SXM4-80GB", 312, 2039), ("A100-SXM4-40GB", 312, 1555),
    ("NVIDIA A100 80GB PCIe", 312, 1935), ("A100-PCIE-40GB", 312, 1555),
    ("NVIDIA H100 80GB HBM3", 989.4, 3350), ("NVIDIA H100 PCIe", 756, 2039),
    ("NVIDIA H100 NVL", 835.5, 3900), ("NVIDIA GB300", 2500, 8000),
    ("NVIDIA GH200 480GB", 989.4, 4000),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 503.8, 1597),
    ("NVIDIA RTX 6000 Ada Generation", 364.2, 960), ("AMD Instinct MI355X", 2516.6, 8000)])
def test_forms_of_a_gpu_have_their_own_data_sheets(tmp_path, model, tflops, gbs):
    """Names as nvidia-smi prints them."""
    assert rate(tmp_path, {"model": model, "utilisation": "100%"}) == pytest.approx(tflops * 1e12)
    assert moved(tmp_path, {"model": model}) == gbs * 1e9


def moved(folder, gpus):
    return load(write(folder, topology(host={"gpus": {"count": 1} | gpus}))).hosts[0].gpus.moved


def test_the_rate_of_a_gpus_memory_is_the_files_or_that_of_its_size(tmp_path):
    assert moved(tmp_path, {"model": "H100", "memory": "96GiB"}) == 3350e9
    assert moved(tmp_path, {"model": "H100", "memory_rate": "2400GB/s"}) == 2400e9
    assert moved(tmp_path, {"model": "A100", "memory": "40GiB"}) == 1555e9


@pytest.mark.parametrize(("gpus", "precision", "key", "says"), [
    ({"model": "H100", "effective": "1TFLOPS", "memory_rate": "2TB/s"}, "bf16",
     "hosts[0].gpus.memory_rate", "has no effect beside effective"),
    ({"model": "V100"}, "bf16", "workload.precision", "V100 has no bf16; allowed: fp32, fp16"),
    ({"model": "A100"}, "fp8", "workload.precision", "A100 has no fp8"),
    ({"model": "A10O"}, "bf16", "hosts[0].gpus", "'A10O' is no model .* did you mean 'A10'"),
    ({"model": "x", "utilisation": 0.5}, "bf16", "hosts[0].gpus", "'x' is no model"),
    ({"model": "A100", "effective": "1TFLOPS", "utilisation": 0.5}, "bf16", "hosts[0].gpus",
     "has both effective and utilisation")])
def test_a_gpu_without_a_speed_is_refused(tmp_path, gpus, precision, key, says):
    with pytest.raises(TopologyError, match=says) as caught:
        rate(tmp_path, gpus, precision)
    assert caught.value.key == key
