"""The shipped parameter sets: complete, sourced, and fitted no more than they say."""


import pytest

from sim.schema.parameters import (
    SETS,
    Parameter,
    StackSet,
    load_framework,
    load_set,
    load_stack,
    shipped,
)
from sim.step.train import largest_deviation
from tests.support import ROOT

STACKS = {name: load_stack(name) for name in shipped("stacks")}
FRAMEWORKS = {name: load_framework(name) for name in shipped("frameworks")}
FIGURES = [(name, key, getattr(given, key))
           for sets in (STACKS, FRAMEWORKS) for name, given in sets.items()
           for key in type(given).model_fields if isinstance(getattr(given, key), Parameter)]


def test_the_sets_that_the_topologies_name_are_shipped():
    assert set(STACKS) >= {"kernel-tcp", "rdma", "taco-harp", "harp"}
    assert set(FRAMEWORKS) >= {"horovod", "lightcc", "ddp"}


TACO = [f"taco-{stack}" for stack in ("tcp", "harp", "tcp-process", "harp-process")]


@pytest.mark.parametrize("name", TACO)
def test_a_stack_of_the_published_table_has_one_fitted_figure(name):
    own = load_set(SETS / "stacks" / f"{name}.yaml", StackSet)  # kernel-tcp's fits are others'
    fitted = [key for key, figure in own if isinstance(figure, Parameter)
              and figure.confidence == "fitted"]
    assert fitted == ["cost_per_byte"]


def test_a_stack_of_the_published_table_is_used_for_its_hosts_alone():
    folder = ROOT / "topologies"
    for path in folder.glob("*.yaml"):
        assert ("stack: taco-" in path.read_text()) == path.name.startswith("taco-"), path.name


@pytest.mark.parametrize(("name", "key"), [("horovod", "selection_per_element"),
                                           ("horovod", "per_tensor")])
def test_parameters_that_predict_lightcc_are_not_fitted(name, key):
    assert getattr(FRAMEWORKS[name], key).confidence in {"published", "measured"}
    assert getattr(FRAMEWORKS["lightcc"], key) == getattr(FRAMEWORKS[name], key)


@pytest.mark.parametrize(("name", "key", "figure"), FIGURES)
def test_every_guess_and_fit_says_so_and_how_far_it_may_be_off(name, key, figure):
    assert len(figure.source) > 20
    reading = name in TACO and key == "cores"  # one of two worlds, not a point in an interval
    if figure.confidence in {"assumed", "fitted"} and not reading:
        assert figure.interval[0] < figure.interval[1]


@pytest.mark.parametrize(("name", "layers"), [
    ("kernel-tcp", {"ethernet": 38, "ipv4": 20, "tcp": 20, "timestamps": 12}),
    ("rdma", {"ethernet": 38, "ipv4": 20, "udp": 8, "bth": 12, "icrc": 4}),
    ("taco-harp", {"ethernet": 38, "ipv4": 20, "udp": 8, "own": 48}),
])
def test_headers_add_up(name, layers):
    assert STACKS[name].headers.value == sum(layers.values())


def test_the_step_overhead_is_what_the_one_and_eight_gpu_rows_leave():
    """Waiting for the slowest of eight ranks takes all of the 8.0 ms, and would take more."""
    horovod = FRAMEWORKS["horovod"]
    jitter_s = horovod.jitter.value * largest_deviation(8) * 128 / 251
    overhead_s = 8 * 128 / 1977 - 128 / 251 - jitter_s
    assert overhead_s < 0
    assert horovod.step_overhead.value == 0
