"""Models of the training workloads, built layer by layer from the shapes of their publications.

>>> get_model("vgg16").parameters
138357544

Images are 224 x 224 x 3 unless a model says otherwise; a *sample* of a language model is one
sequence. Names of tensors follow the publications and common implementations closely enough to
recognise them in a timeline.
"""

from __future__ import annotations

import difflib
from functools import cache
from typing import TYPE_CHECKING

from sim.workloads import layers as nn
from sim.workloads.inception import inception_v3_layers
from sim.workloads.model import Model
from sim.workloads.recommenders import (
    deepfm_layers,
    dlrm_layers,
    dlrm_terabyte_layers,
    mmoe_layers,
    wide_and_deep_layers,
)
from sim.workloads.transformer import Experts, Transformer, build

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.workloads.layers import Layer


def _vgg16(name: str = "vgg16", divisor: int = 1) -> Model:
    """Channels, features and classes are divided by ``divisor``."""
    layers: list[Layer] = []
    channels, size = 3, 224
    for stage, (filters, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for index in range(1, depth + 1):
            layers.append(nn.conv2d(f"conv{stage}_{index}", channels, filters // divisor, 3, size,
                                    first=not layers, relu=True))
            channels = filters // divisor
        layers[-1] = nn.pooled(layers[-1], channels, size, size // 2)
        size //= 2
    features = 4096 // divisor
    layers += [nn.linear("fc6", channels * size * size, features),
               nn.linear("fc7", features, features), nn.linear("fc8", features, 1000 // divisor)]
    return Model(name, tuple(layers), "image of 224x224",
                 "Simonyan and Zisserman 2014, configuration D")


def _bottleneck(name: str, channels: int, width: int, size: int, stride: int) -> list[Layer]:
    """Residual block of three convolutions; ``size`` is that of its output."""
    expanded = 4 * width
    layers = [
        nn.conv2d(f"{name}.conv1", channels, width, 1, size * stride, bias=False),
        nn.batchnorm(f"{name}.bn1", width, size * stride),
        nn.conv2d(f"{name}.conv2", width, width, 3, size, stride=stride, bias=False),
        nn.batchnorm(f"{name}.bn2", width, size),
        nn.conv2d(f"{name}.conv3", width, expanded, 1, size, bias=False),
        nn.batchnorm(f"{name}.bn3", expanded, size, added=True),
    ]
    if channels != expanded:
        layers += [nn.conv2d(f"{name}.shortcut", channels, expanded, 1, size, stride=stride,
                             bias=False, beside=True),
                   nn.batchnorm(f"{name}.shortcut_bn", expanded, size, relu=False)]
    return layers


def _resnet(name: str, blocks: tuple[int, int, int, int]) -> Model:
    layers = [nn.conv2d("conv1", 3, 64, 7, 112, stride=2, bias=False, first=True),
              nn.pooled(nn.batchnorm("bn1", 64, 112), 64, 112, 56)]
    channels, size = 64, 56  # the stem ends with a max pool of stride 2
    for stage, depth in enumerate(blocks):
        width = 64 << stage
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            size //= stride
            layers += _bottleneck(f"layer{stage + 1}.{index}", channels, width, size, stride)
            channels = 4 * width
    layers.append(nn.linear("fc", channels, 1000))
    return Model(name, tuple(layers), "image of 224x224",
                 "He et al. 2015, with the stride in the 3x3 convolution (v1.5, as torchvision)")


def _bert(name: str, depth: int, width: int, tokens: int = 128) -> Model:
    layers = [nn.embedding("embeddings.word", 30522, width),
              nn.embedding("embeddings.position", 512, width),
              nn.embedding("embeddings.type", 2, width),
              nn.layernorm("embeddings.norm", width, tokens)]
    for index in range(depth):
        block = f"layer.{index}"
        layers += [*nn.attention(f"{block}.attention", width, tokens),
                   nn.layernorm(f"{block}.attention.norm", width, tokens),
                   *nn.ffn(f"{block}.ffn", width, 4 * width, tokens),
                   nn.layernorm(f"{block}.norm", width, tokens)]
    layers.append(nn.linear("pooler", width, width))
    return Model(name, tuple(layers), f"sequence of {tokens} tokens",
                 "Devlin et al. 2018, uncased, encoder and pooler; 128 tokens as in nine tenths of "
                 "its pre-training", tokens * width, tokens, Transformer(
                     depth, width, width // 64, 30522, bias="all", head="none", positions=512,
                     types=2, pooler=True, dropout=True))


def _transformer_xl(depth: int = 18, width: int = 1024, inner: int = 4096, tokens: int = 384,
                    memory: int = 384) -> Model:
    """Build Transformer-XL large for WikiText-103 as its authors released it.

    Embedding and softmax are adaptive: four clusters of words of falling frequency and width share
    their tables, and all projections but the first one, between input and output. Every token is
    embedded and scored in the first cluster; the few whose word lies in a later one also use that,
    which is left out of the FLOPs. The shapes give 285.2 M parameters, 245.6 M of them in the
    layers; the paper's table prints 257 M for the same model without saying what it counts.
    """
    clusters = ((20000, width), (20000, width // 4), (160000, width // 16), (67735, width // 64))
    layers = []
    for index, (words, size) in enumerate(clusters):
        layers.append(nn.embedding(f"embedding.{index}", words, size))
        # The cost of a later cluster is left out, so its projection is a table without arithmetic.
        layers.append(nn.embedding(f"embedding.{index}.projection", size, width) if index else
                      nn.linear("embedding.0.projection", size, width, tokens, bias=False))
    for index in range(depth):
        block = f"layer.{index}"
        layers += [*nn.relative_attention(f"{block}.attention", width, tokens, memory),
                   nn.layernorm(f"{block}.attention.norm", width, tokens),
                   *nn.ffn(f"{block}.ffn", width, inner, tokens),
                   nn.layernorm(f"{block}.norm", width, tokens)]
    later = len(clusters) - 1
    layers += [nn.linear("softmax.projection", width, width, tokens, bias=False),
               nn.tied_linear("softmax.0", width, clusters[0][0], tokens),
               nn.embedding("softmax.bias", sum(words for words, _ in clusters), 1),
               nn.linear("softmax.clusters", width, later, tokens)]
    return Model("transformer-xl", tuple(layers), f"sequence of {tokens} tokens",
                 "Dai et al. 2019, large model for WikiText-103, and the authors' run script",
                 tokens=tokens)


def _gpt(name: str, source: str, depth: int, width: int, positions: int, tokens: int, *,
         experts: int = 0) -> Model:
    """Build a decoder in GPT-2's layout; with ``experts``, every second feed-forward is an MoE."""
    mix = Experts(experts, 1, 4 * width, every=2) if experts else None
    vocabulary = 50257
    layers = [nn.embedding("wte", vocabulary, width), nn.embedding("wpe", positions, width)]
    for index in range(depth):
        block = f"h.{index}"
        feed_forward = (nn.moe_ffn(f"{block}.moe", width, 4 * width, tokens, experts=experts)
                        if experts and index % 2 else
                        nn.ffn(f"{block}.mlp", width, 4 * width, tokens))
        layers += [nn.layernorm(f"{block}.ln_1", width, tokens),
                   *nn.attention(f"{block}.attn", width, tokens, fused=True),
                   nn.layernorm(f"{block}.ln_2", width, tokens), *feed_forward]
    layers += [nn.layernorm("ln_f", width, tokens),
               nn.tied_linear("head", width, vocabulary, tokens)]
    return Model(name, tuple(layers), f"sequence of {tokens} tokens", source, tokens * width,
                 tokens, Transformer(depth, width, width // 64, vocabulary, bias="all", head="tied",
                                     positions=positions, dropout=True, experts=mix))


def _llama(name: str, source: str, depth: int, width: int, heads: int, inner: int, *,
           kv_heads: int = 0, vocabulary: int, tokens: int) -> Model:
    """Build a decoder with RMS norms, SwiGLU, no biases, and an output layer of its own."""
    return build(Transformer(depth, width, heads, vocabulary, kv_heads, ffn=inner, gated=True,
                             norm="rms"), tokens, name, source)


MODELS: dict[str, Callable[[], Model]] = {
    "vgg16": _vgg16,
    "vgg16-quarter": lambda: _vgg16("vgg16-quarter", 4),
    "resnet50": lambda: _resnet("resnet50", (3, 4, 6, 3)),
    "resnet101": lambda: _resnet("resnet101", (3, 4, 23, 3)),
    "transformer-xl": _transformer_xl,
    "inception-v3": lambda: Model("inception-v3", tuple(inception_v3_layers()),
                                  "image of 299x299", "Szegedy et al. 2016"),
    "wide-and-deep": lambda: Model("wide-and-deep", tuple(wide_and_deep_layers()), "click",
                                   "Cheng et al. 2016, figure 4, on Criteo's public features"),
    "deepfm": lambda: Model("deepfm", tuple(deepfm_layers()), "click", "Guo et al. 2017"),
    "dlrm": lambda: Model("dlrm", tuple(dlrm_layers()), "click",
                          "Naumov et al. 2019, on Criteo's public features"),
    "dlrm-terabyte": lambda: Model("dlrm-terabyte", tuple(dlrm_terabyte_layers()), "click",
                                   "MLPerf's DLRM of 2020, on Criteo's Terabyte logs"),
    "mmoe": lambda: Model("mmoe", tuple(mmoe_layers()), "click",
                          "Ma et al. 2018, on Criteo's public features"),
}
"""Builders of the shipped models with samples of one size, by the name that a file uses."""
_LLAMA3 = "Grattafiori et al. 2024, The Llama 3 Herd of Models, table 3"
OF_TOKENS: dict[str, tuple[Callable[[int], Model], int, int]] = {
    "bert-base": (lambda tokens: _bert("bert-base", 12, 768, tokens), 128, 512),
    "bert-large": (lambda tokens: _bert("bert-large", 24, 1024, tokens), 128, 512),
    "gpt2": (lambda tokens: _gpt("gpt2", "Radford et al. 2019, smallest of four (124 M)",
                                 12, 768, 1024, tokens), 1024, 1024),
    "llama2-7b": (lambda tokens: _llama(
        "llama2-7b", "Touvron et al. 2023, Llama 2, 7 B", 32, 4096, 32, 11008,
        vocabulary=32000, tokens=tokens), 4096, 0),
    "llama3-8b": (lambda tokens: _llama("llama3-8b", _LLAMA3, 32, 4096, 32, 14336, kv_heads=8,
                                        vocabulary=128256, tokens=tokens), 8192, 0),
    "llama3-70b": (lambda tokens: _llama("llama3-70b", _LLAMA3, 80, 8192, 64, 28672, kv_heads=8,
                                         vocabulary=128256, tokens=tokens), 8192, 0),
    "llama3-405b": (lambda tokens: _llama(
        "llama3-405b", _LLAMA3, 126, 16384, 128, 53248, kv_heads=8, vocabulary=128256,
        tokens=tokens), 8192, 0),
    "moe": (lambda tokens: _gpt(
        "moe", "Rajbhandari et al. 2022 (DeepSpeed-MoE), 350M+MoE-128: 24 layers of 1024, top-1 "
        "of 128 experts in every second one, 13 B parameters", 24, 1024, 2048, tokens,
        experts=128), 2048, 2048),
}
"""Builders of models of text, the tokens of a sample where a file does not say, and the most that
the model has learned positions for (0: any)."""
NAMES = (*MODELS, *OF_TOKENS)


@cache
def get_model(name: str, sequence: int | None = None) -> Model:
    """Return the model called ``name`` for samples of ``sequence`` tokens.

    Raises:
        ValueError: an unknown name, or tokens that it cannot take; one sentence.

    """
    if name in MODELS and sequence is None:
        return MODELS[name]()
    if name in MODELS:
        raise ValueError(f"a sample of {name} is no sequence of any length")
    if name not in OF_TOKENS:
        near = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.0)[0]
        raise ValueError(f"unknown model {name!r}; did you mean {near!r}? "
                         f"Allowed are {', '.join(NAMES)}.")
    made, usual, most = OF_TOKENS[name]
    if sequence is not None and 0 < most < sequence:
        raise ValueError(f"{name} has learned {most} positions and no more")
    return made(sequence or usual)
