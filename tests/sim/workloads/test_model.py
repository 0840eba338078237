"""A network as a list of layers, and its sums."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.workloads.layers import Layer, Tensor
from sim.workloads.model import Model, block_of
from sim.workloads.models import get_model

COUNTS = st.integers(1, 1000)


@given(st.lists(st.tuples(COUNTS, COUNTS, COUNTS, COUNTS), min_size=1, max_size=5))
def test_a_model_has_what_its_layers_have(numbers) -> None:
    layers = tuple(Layer(f"l.{at}.x", (Tensor(f"{at}", own),), forward, backward,
                         expert_tensors=(Tensor(f"{at} e", spread),))
                   for at, (own, spread, forward, backward) in enumerate(numbers))
    made = Model("m", layers, "sample", "made up")
    assert made.replicated == sum(own for own, *_ in numbers)
    assert made.parameters == made.replicated + sum(spread for _, spread, *_ in numbers)
    assert made.forward_flops == sum(forward for *_, forward, _ in numbers)
    assert made.backward_flops == sum(backward for *_, backward in numbers)
    assert made.mixtures == len(layers)
    assert [tensor.elements for tensor in made.tensors] == [own for own, *_ in numbers]
    assert not made.is_measured


@pytest.mark.parametrize(("name", "block"), [
    ("layers.3.attention.query", "layers.3"), ("layer.0.mlp", "layer.0"), ("h.11.x", "h.11"),
    ("layer1.2.conv", "layer1.2"), ("embed", ""), ("head.1.x", ""), ("xh.1.x", ""), ("h.1", "")])
def test_a_block_is_known_by_its_layers_names(name: str, block: str) -> None:
    assert block_of(Layer(name, (), 1, 2)) == block
    assert block_of(Layer(name, (), 1, 2, block="own")) == "own"


@pytest.mark.parametrize(("name", "blocks"), [
    ("gpt2", 12), ("bert-large", 24), ("llama2-7b", 32), ("vgg16", 0)])
def test_published_models_have_their_blocks(name: str, blocks: int) -> None:
    assert get_model(name).blocks == blocks


@pytest.mark.parametrize(("name", "convolves"), [
    ("vgg16", True), ("resnet50", True), ("gpt2", False), ("dlrm", False)])
def test_networks_of_images_convolve(name: str, convolves: bool) -> None:
    assert get_model(name).is_convolutional is convolves


def test_tables_count_among_what_is_spread() -> None:
    model = get_model("dlrm")
    assert model.of_tables == model.spread > 0.99 * model.parameters
    assert get_model("moe").of_tables == 0 < get_model("moe").spread
