"""Models built from shapes, held against published counts and closed forms."""


import pytest

from sim.workloads.models import NAMES, get_model


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


def test_moe_has_the_published_thirteen_billion_parameters_mostly_in_experts():
    model = get_model("moe")
    replicated = sum(tensor.elements for tensor in model.tensors)
    assert model.parameters == pytest.approx(13e9, rel=0.02)
    assert replicated < 0.03 * model.parameters


def test_moe_exchanges_every_tokens_vector_in_each_expert_layer():
    exchanged = [layer.alltoall_bytes() for layer in get_model("moe").layers
                 if layer.alltoall_elements]
    assert exchanged == 12 * [2048 * 1024 * 2]  # tokens x width x fp16


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
