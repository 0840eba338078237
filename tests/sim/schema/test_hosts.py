"""What a host group has where the file does not say it."""

import pytest

from sim.schema import TopologyError, load
from sim.schema.gpu_kinds import KINDS, NVLINK
from sim.schema.hosts import HostGroup

SMALLEST = """\
name: smallest
hosts:
  - name: h
    count: 2
    gpus: {{count: {count}, model: {model}{speed}}}
    {nvlink}
    nics: [{{name: eth, rate: 25Gbps}}]
fabric: {{template: single-switch}}
"""


def group(tmp_path, model: str, count: int = 8, nvlink: str = "", speed: str = "") -> HostGroup:
    path = tmp_path / "x.yaml"
    path.write_text(SMALLEST.format(model=model, count=count, nvlink=nvlink, speed=speed))
    return load(path).hosts[0]


@pytest.mark.parametrize(("model", "rate_gbs"), [
    ("V100", 132), ("V100-SXM2-32GB", 132), ("A100-SXM4-40GB", 240), ("NVIDIA H100 80GB HBM3", 360),
    ("B200", 720), ("T4", None), ("NVIDIA L4", None),
])
def test_nvlink_is_that_of_the_gpus_model_where_a_file_does_not_give_it(tmp_path, model, rate_gbs):
    nvlink = group(tmp_path, model).nvlink
    assert (nvlink and nvlink.rate / 8e9) == rate_gbs


def test_nvlink_that_a_file_gives_is_taken(tmp_path):
    assert group(tmp_path, "A100", nvlink="nvlink: none").nvlink is None
    given = group(tmp_path, "T4", nvlink="nvlink: {rate: 50GB/s}").nvlink
    assert given is not None
    assert given.rate == 50 * 8e9


@pytest.mark.parametrize("model", ["A100-PCIE-40GB", "A40", "MI300X", "Z9"])
def test_nvlink_must_be_given_for_gpus_that_are_sold_with_and_without_it(tmp_path, model):
    speed = "" if model in ("A100-PCIE-40GB", "A40", "MI300X") else ", effective: 50TFLOPS"
    with pytest.raises(TopologyError) as caught:
        group(tmp_path, model, speed=speed)
    assert f"hosts[0].nvlink: is missing, and GPUs {model!r} are " in str(caught.value)
    assert ("not known" in str(caught.value)) == (model == "Z9")
    assert "did you mean" not in str(caught.value)
    assert "none, or {rate: " in str(caught.value)
    assert group(tmp_path, model, speed=speed, nvlink="nvlink: none").nvlink is None


def test_one_gpu_alone_needs_no_nvlink(tmp_path):
    assert group(tmp_path, "A40", count=1).nvlink is None


def test_nvlink_is_known_for_kinds_that_have_a_data_sheet():
    assert set(NVLINK) <= set(KINDS)


def test_a_file_without_scenarios_compares_kernel_tcp_alone(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(SMALLEST.format(model="V100", count=8, nvlink="", speed=""))
    (scenario,) = load(path).scenarios
    assert (scenario.name, scenario.stack) == ("TCP", "kernel-tcp")
