"""Models built from shapes, held against published counts and closed forms."""

from itertools import pairwise

import pytest

from sim.workloads import layers as nn
from sim.workloads.models import NAMES, get_model
from sim.workloads.recommenders import mixture_layers


@pytest.mark.parametrize(("name", "parameters"), [
    ("vgg16", 138_357_544),
    ("resnet50", 25_557_032),
    ("resnet101", 44_549_160),
    ("bert-base", 109_482_240),
    ("bert-large", 335_141_888),
    ("gpt2", 124_439_808),
    ("llama2-7b", 6_738_415_616),
    ("inception-v3", 23_834_568),
])
def test_parameters_equal_the_published_count(name, parameters):
    assert get_model(name).parameters == parameters
    assert sum(tensor.elements for tensor in get_model(name).tensors) == parameters


@pytest.mark.parametrize(("name", "gmac"), [("vgg16", 15.47), ("resnet50", 4.09),
                                            ("resnet101", 7.80), ("inception-v3", 5.71)])
def test_flops_are_within_one_percent_of_the_published_gmacs(name, gmac):
    assert get_model(name).forward_flops / 2e9 == pytest.approx(gmac, rel=0.01)


@pytest.mark.parametrize(("name", "depth", "width"), [("bert-base", 12, 768),
                                                      ("bert-large", 24, 1024)])
def test_bert_flops_follow_the_closed_form(name, depth, width):
    tokens = 128
    # Per token and layer: 4 h^2 in attention, 8 h^2 in the FFN, 2 s h in scores and context.
    matrices = depth * tokens * (12 * width**2 + 2 * tokens * width)
    norms = (2 * depth + 1) * tokens * width
    assert get_model(name).forward_flops == 2 * (matrices + norms + width**2)


def test_gpt2_flops_follow_the_closed_form():
    depth, width, tokens, vocabulary = 12, 768, 1024, 50257
    matrices = depth * tokens * (12 * width**2 + 2 * tokens * width) + tokens * width * vocabulary
    norms = (2 * depth + 1) * tokens * width
    assert get_model("gpt2").forward_flops == 2 * (matrices + norms)


def test_transformer_xl_counts_layers_embedding_and_softmax():
    width, inner, depth = 1024, 4096, 18
    layer = 5 * width**2 + 2 * width + 2 * width * inner + inner + width + 4 * width
    tables = 20000 * 1024 + 20000 * 256 + 160000 * 64 + 67735 * 16
    projections = width * (1024 + 256 + 64 + 16) + width**2
    softmax = 267_735 + 3 * (width + 1)
    model = get_model("transformer-xl")
    in_layers = sum(part.parameters for part in model.layers if part.name.startswith("layer."))
    assert in_layers == depth * layer == 245_569_536
    assert model.parameters == in_layers + tables + projections + softmax
    assert in_layers < 257e6 < model.parameters  # what the paper prints lies between the two


def test_transformer_xl_attends_to_memory_and_tokens():
    with_memory = nn.relative_attention("a", 64, tokens=10, memory=30)
    without = nn.relative_attention("a", 64, tokens=10, memory=0)
    flops = {layer.name: layer.forward_flops for layer in with_memory}
    assert flops["a.qkv"] == 2 * 40 * 64 * 3 * 64
    assert flops["a.scores"] == 3 * 2 * 10 * 40 * 64
    assert sum(flops.values()) > sum(layer.forward_flops for layer in without)


def test_moe_has_the_published_thirteen_billion_parameters_mostly_in_experts():
    model = get_model("moe")
    replicated = sum(tensor.elements for tensor in model.tensors)
    assert model.parameters == pytest.approx(13e9, rel=0.02)
    assert replicated < 0.03 * model.parameters


def test_moe_exchanges_every_tokens_vector_in_each_expert_layer():
    exchanged = [layer.alltoall_bytes() for layer in get_model("moe").layers
                 if layer.alltoall_elements]
    assert exchanged == 12 * [2048 * 1024 * 2]  # tokens x width x fp16


def test_moe_cost_grows_with_top_k_and_capacity_but_not_with_experts():
    def experts(**given):
        return nn.moe_ffn("m", 8, 32, 100, **given)[1]
    base = experts(experts=4)
    assert base.forward_flops == 2 * 2 * 8 * 32 * 100
    assert experts(experts=16).forward_flops == base.forward_flops
    assert experts(experts=16).parameters == 4 * base.parameters
    wide = experts(experts=4, top_k=2, capacity=1.25)
    assert wide.forward_flops == 2.5 * base.forward_flops
    assert wide.alltoall_bytes(4) == 2.5 * base.alltoall_bytes(4) == 2.5 * 100 * 8 * 4


def test_vgg16_has_32_gradients_and_eleven_of_2_mib_or_more():
    tensors = get_model("vgg16").tensors
    large = [tensor.elements for tensor in tensors if 4 * tensor.elements >= 2 << 20]
    assert len(tensors) == 32
    assert len(large) == 11
    assert sum(large) == 137_789_440  # 137.79 M


def test_a_quarter_of_vgg16_is_a_sixteenth_of_its_gradient_in_the_same_proportion():
    model = get_model("vgg16-quarter")
    assert len(model.tensors) == 32
    assert model.parameters == pytest.approx(get_model("vgg16").parameters / 16, rel=0.01)
    share = sum(layer.parameters for layer in model.layers[-3:]) / model.parameters
    assert share == pytest.approx(0.894, abs=0.005)


def test_vgg16_keeps_nine_tenths_of_its_gradient_in_the_last_three_layers():
    model = get_model("vgg16")
    share = sum(layer.parameters for layer in model.layers[-3:]) / model.parameters
    assert share == pytest.approx(0.894, abs=0.001)


@pytest.mark.parametrize("name", NAMES)
def test_every_model_is_well_formed(name):
    model = get_model(name)
    names = [tensor.name for layer in model.layers
             for tensor in layer.tensors + layer.expert_tensors]
    assert model.name == name
    assert len(set(names)) == len(names)
    assert len({layer.name for layer in model.layers}) == len(model.layers)
    assert model.forward_flops <= model.backward_flops <= 2 * model.forward_flops
    assert all(tensor.elements > 0 for tensor in model.tensors)
    assert sum(layer.parameters for layer in model.layers) == model.parameters


def test_the_first_layer_needs_no_gradient_of_its_input():
    first, second = get_model("vgg16").layers[:2]
    assert first.backward_flops == first.forward_flops
    assert second.backward_flops == 2 * second.forward_flops


def test_convolution_and_linear_by_hand():
    conv = nn.conv2d("c", 3, 64, 3, 224)
    assert conv.parameters == 3 * 64 * 9 + 64
    assert conv.forward_flops == 2 * 3 * 64 * 9 * 224 * 224
    full = nn.linear("l", 10, 20, tokens=7, bias=False)
    assert [tensor.elements for tensor in full.tensors] == [200]
    assert full.forward_flops == 2 * 10 * 20 * 7
    assert nn.batchnorm("b", 8, 5).parameters == nn.layernorm("n", 8, 5).parameters == 16
    assert nn.embedding("e", 100, 8).forward_flops == 0


@pytest.mark.parametrize(("wrong", "near"), [("vgg61", "vgg16"), ("Resnet-50", "resnet50"),
                                             ("bert_large", "bert-large"), ("", "vgg16")])
def test_an_unknown_model_names_the_nearest_one(wrong, near):
    with pytest.raises(ValueError, match=f"^unknown model '{wrong}'.*{near}") as caught:
        get_model(wrong)
    assert "\n" not in str(caught.value)


def test_llama_flops_follow_the_closed_form():
    """2 N a token for the N weights of its matrices, and 4 s h a layer for scores and context."""
    depth, width, inner, tokens, vocabulary = 32, 4096, 11008, 4096, 32000
    weights = depth * (4 * width**2 + 3 * width * inner) + vocabulary * width
    norms = 2 * (2 * depth + 1) * width
    a_token = 2 * weights + 4 * depth * tokens * width + norms
    assert get_model("llama2-7b").forward_flops == tokens * a_token
    assert get_model("llama2-7b").backward_flops == 2 * get_model("llama2-7b").forward_flops


def mlp(*widths):
    """Parameters of linear layers from each width to the next."""
    return sum(inputs * outputs + outputs for inputs, outputs in pairwise(widths))


@pytest.mark.parametrize(("name", "network", "rows", "width"), [
    ("wide-and-deep", mlp(845, 1024, 512, 256, 1), 33_762_577, 33),
    ("deepfm", mlp(390, 400, 400, 400, 1) + 13 * 11, 33_762_577, 11),
    ("dlrm", mlp(13, 512, 256, 64, 16) + mlp(16 + 27 * 13, 512, 256, 1), 33_762_577, 16),
    ("dlrm-terabyte", mlp(13, 512, 256, 128) + mlp(128 + 27 * 13, 1024, 1024, 512, 256, 1),
     187_767_399, 128),
    ("mmoe", 8 * mlp(845, 16) + 2 * 845 * 8 + 2 * mlp(16, 8, 1), 33_762_577, 32)])
def test_recommenders_are_their_tables_and_a_network(name, network, rows, width):
    """Criteo's public logs have 33,762,577 values (Naumov et al. 2019); the tables are spread."""
    model = get_model(name)
    assert sum(tensor.elements for tensor in model.tensors) == network
    assert model.parameters == network + rows * width
    tables, = (layer for layer in model.layers if layer.lookups)
    assert (tables.lookups, tables.alltoall_elements) == (26, 26 * width)


@pytest.mark.parametrize(("name", "published"), [("dlrm", 540e6), ("dlrm-terabyte", 24e9)])
def test_dlrm_has_the_parameters_that_its_authors_count(name, published):
    """Naumov et al. 2019, section 5.1: some 540 million; MLPerf's: 24 billion."""
    assert get_model(name).parameters == pytest.approx(published, rel=0.005)


def test_mmoe_is_as_large_as_the_shared_layer_that_its_authors_compare_it_with():
    """Ma et al. 2018: of 100 inputs; experts and towers as one layer of 113 and its towers."""
    layers = [layer for layer in mixture_layers(100) if not layer.name.startswith("gate")]
    shared = mlp(100, 113) + 2 * mlp(113, 8, 1)
    assert sum(layer.parameters for layer in layers) == pytest.approx(shared, rel=0.01)
