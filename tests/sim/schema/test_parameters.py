"""Parameter sets: shipped ones are complete and sourced, overrides inherit."""


import pytest

from sim.schema import TopologyError, load
from sim.schema.parameters import (
    SETS,
    FrameworkSet,
    StackSet,
    load_framework,
    load_set,
    load_stack,
    shipped,
)
from tests.support import ROOT

EVERYTHING = load(ROOT / "tests" / "data" / "good" / "everything.yaml")
FIGURE = "{value: 1ns, confidence: measured, source: me}"


@pytest.mark.parametrize("name", shipped("stacks"))
def test_a_shipped_stack_is_complete(name):
    stack = load_stack(name)
    assert stack.name == name
    assert stack.description
    assert stack.flow_rate.interval[0] <= stack.flow_rate.value <= stack.flow_rate.interval[1]


@pytest.mark.parametrize("name", shipped("frameworks"))
def test_a_shipped_framework_is_complete(name):
    costs = load_framework(name)
    assert costs.name == name
    assert 0 <= costs.overlap.interval[0] <= costs.overlap.interval[1] <= 1


def test_an_override_takes_the_rest_from_its_base_and_says_so():
    stack = load_stack("mine", EVERYTHING.stacks)
    assert (stack.name, stack.cost_per_byte.value) == ("mine", 2e-10)
    assert stack.cost_per_byte.confidence == "assumed"
    assert stack.cost_per_byte.source == "the topology file"
    assert stack.cost_per_packet == load_stack("harp").cost_per_packet


def test_an_override_of_a_shipped_name_may_build_on_it():
    stack = load_stack("harp", EVERYTHING.stacks)
    assert (stack.flow_rate.value, stack.flow_rate.interval) == (20e9, (10e9, 20e9))
    assert load_stack("mine", EVERYTHING.stacks).flow_rate == stack.flow_rate
    assert load_stack("harp").flow_rate != stack.flow_rate


def test_frameworks_inherit_alike():
    costs = load_framework("own", EVERYTHING.frameworks)
    assert (costs.per_tensor.value, costs.overlap.value) == (2e-4, 0.8)
    assert costs.step_overhead == load_framework("horovod").step_overhead


def test_an_unknown_set_is_an_error_with_the_nearest_name():
    with pytest.raises(TopologyError, match="did you mean 'kernel-tcp'") as caught:
        load_stack("kernel_tcp")
    assert caught.value.nearest == "kernel-tcp"


def test_a_parameter_file_must_name_sources(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("description: x\ncost_per_byte: 1ns\n")
    with pytest.raises(TopologyError, match=r"x.yaml:2:16: cost_per_byte: '1ns' has no source"):
        load_set(path, StackSet)
    path.write_text(f"description: x\nper_tensor: {FIGURE}\n")
    assert load_set(path, FrameworkSet).per_tensor is not None


def test_a_set_written_back_reads_the_same(tmp_path):
    for name in shipped("stacks"):
        first = load_set(SETS / "stacks" / f"{name}.yaml", StackSet)
        path = tmp_path / f"{name}.yaml"
        path.write_text(first.model_dump_json(exclude_none=True))
        assert load_set(path, StackSet) == first
