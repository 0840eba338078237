"""Transformers by their shape: every layer, parameter and FLOP out of some twenty numbers.

`Transformer` holds the numbers, `build` makes the `Model` for samples of some tokens. It covers
encoders, decoders and both together, attention with grouped heads (Ainslie et al. 2023), with
windows, or with latent keys and values (DeepSeek-V2, section 2.1), feed-forward networks with and
without a gate (Shazeer 2020), mixtures of experts with shared ones (DeepSeekMoE, 2024), and layers
that predict further tokens (DeepSeek-V3, section 2.2).

Counting rules are those of `sim.workloads.layers`. Scores and context are counted over all tokens
that a token may see: the whole sample, or its window where that is shorter; causal masks halve
nothing, as in the formula of Megatron-LM (Narayanan et al., SC 2021, section 5.1). A token goes to
``top_k`` experts and none is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from sim.workloads import layers as nn
from sim.workloads.layers import Layer, Tensor
from sim.workloads.model import Model

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Experts:
    """A mixture in place of the feed-forward network of some layers."""

    count: int
    top_k: int
    ffn: int
    shared: int = 0
    """Width of the network that every token passes as well; 0: none."""
    shared_gate: bool = False
    """Whether a vector of the width weighs what that network gives, as in Qwen 2."""
    every: int = 1
    """One layer in this many has a mixture, the last of each group."""
    first: int = 0
    """Layers at the beginning that have none."""
    groups: int = 1
    """Groups of neighbouring experts."""
    top_groups: int = 1
    """Groups that a token goes to; all its experts are in these."""


@dataclass(frozen=True)
class Latent:
    """Attention whose keys and values, and perhaps queries, come out of narrow vectors."""

    kv_rank: int
    nope: int
    """Elements of a head without position."""
    rope: int
    """Elements of a head that carry the position; those of keys are the same for all heads."""
    value: int
    q_rank: int = 0
    """0: queries are projected at once."""


@dataclass(frozen=True)
class Patches:
    """An image as tokens, one for each patch, and one for the class."""

    image: int
    size: int
    channels: int = 3
    classes: int = 0


@dataclass(frozen=True)
class Transformer:
    """The shape of a transformer."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 0
    kv_heads: int = 0
    """0: as many as heads."""
    head_width: int = 0
    """0: width over heads."""
    ffn: int = 0
    """0: four times the width."""
    gated: bool = False
    norm: Literal["rms", "layer"] = "layer"
    norms: int = 2
    """Normalisations of a layer: before attention and network, or also behind them."""
    bias: Literal["none", "qkv", "all"] = "none"
    qk_norm: bool = False
    head: Literal["own", "tied", "none"] = "own"
    positions: int = 0
    """Learned positions; 0: none."""
    types: int = 0
    pooler: bool = False
    window: int = 0
    """Tokens that a token sees; 0: all."""
    full_every: int = 0
    """Every how many layers one sees all in spite of the window; 0: none does."""
    encoder: int = 0
    """Layers of an encoder before it, which every layer then also attends to."""
    buckets: int = 0
    """Rows of a table of relative positions for each head, one table a stack; 0: none."""
    dropout: bool = False
    ahead: int = 0
    """Layers behind the stack. In training each predicts one token more."""
    experts: Experts | None = None
    latent: Latent | None = None
    patches: Patches | None = None

    @property
    def head_size(self) -> int:
        """Elements of a head."""
        return self.head_width or self.width // self.heads

    @property
    def kv(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def is_rotary(self) -> bool:
        """Whether queries and keys are turned by their positions, as nothing else tells these."""
        return not (self.positions or self.buckets or self.patches)

    @property
    def inner(self) -> int:
        """Width inside the feed-forward network."""
        return self.ffn or 4 * self.width

    @property
    def depth(self) -> int:
        """Layers of both stacks."""
        return self.layers + self.encoder

    @property
    def key_elements(self) -> int:
        """Elements of a token's keys and values in a layer, or of what they come out of."""
        if self.latent is not None:
            return self.latent.kv_rank + self.latent.rope
        return 2 * self.kv * self.head_size

    def tokens(self, sequence: int) -> int:
        """Tokens of a sample."""
        if self.patches is None:
            return sequence
        return (self.patches.image // self.patches.size) ** 2 + 1

    def has_experts(self, index: int) -> bool:
        """Whether layer ``index`` is one of the mixture's."""
        mix = self.experts
        return mix is not None and index >= mix.first and (index + 1) % mix.every == 0

    def seen(self, index: int, tokens: int) -> int:
        """Tokens that each of ``tokens`` attends to in layer ``index``."""
        if not self.window or (self.full_every and (index + 1) % self.full_every == 0):
            return tokens
        return min(self.window, tokens)


@cache
def build(shape: Transformer, sequence: int, name: str = "transformer",
          source: str = "the shape that the file gives") -> Model:
    """Make the model of ``shape`` for samples of ``sequence`` tokens (images where it has patches).

    An encoder and the decoder behind it get ``sequence`` tokens each.
    """
    tokens = shape.tokens(sequence)
    layers = [*_embeddings(shape, tokens), *_stacks(shape, tokens), *_top(shape, tokens)]
    for number in range(shape.ahead):
        layers += _ahead(shape, number, tokens)
    patches = shape.patches
    sample = (f"image of {patches.image}x{patches.image}" if patches
              else f"sequence of {tokens} tokens")
    return Model(name, tuple(layers), sample, source, tokens * shape.width,
                 tokens=0 if patches else tokens, shape=shape)


def _embeddings(shape: Transformer, tokens: int) -> Iterator[Layer]:
    width, patches = shape.width, shape.patches
    if shape.vocabulary:
        yield nn.embedding("embed_tokens", shape.vocabulary, width)
    if patches:
        yield nn.linear("patches", patches.channels * patches.size**2, width, tokens - 1,
                        first=True)
        yield nn.embedding("class_token", 1, width)
    rows = shape.positions or (tokens if patches else 0)
    if rows:
        yield nn.embedding("positions", rows, width)
    if shape.types:
        yield nn.embedding("types", shape.types, width)
        yield _norm(shape, "embed_norm", tokens)


def _stacks(shape: Transformer, tokens: int) -> Iterator[Layer]:
    """The encoder, if any, and the main stack, each with its relative positions."""
    for stack, depth in (("layers1" if shape.encoder else "", shape.encoder),
                         ("layers2" if shape.encoder else "layers", shape.layers)):
        if depth and shape.buckets:
            yield nn.embedding(f"{stack}_positions", shape.buckets, shape.heads)
        for index in range(depth):
            yield from _block(shape, f"{stack}.{index}", index, tokens,
                              cross=stack == "layers2")
        if stack == "layers1":
            yield _norm(shape, "encoder_norm", tokens)


def _top(shape: Transformer, tokens: int) -> Iterator[Layer]:
    width = shape.width
    if not shape.types:  # those with types normalise behind each layer, hence behind the last one
        yield _norm(shape, "norm", tokens)
    if shape.pooler:
        yield nn.linear("pooler", width, width)
    if shape.patches:
        if shape.patches.classes:
            yield nn.linear("classes", width, shape.patches.classes)
    elif shape.head == "own":
        yield nn.linear("lm_head", width, shape.vocabulary, tokens, bias=False)
    elif shape.head == "tied":
        yield nn.tied_linear("lm_head", width, shape.vocabulary, tokens)


def _ahead(shape: Transformer, number: int, tokens: int) -> Iterator[Layer]:
    """A block that predicts the token after the next: DeepSeek-V3, equations 21 to 23.

    Tables of words and output layer are those of the model. They count as work again, not as
    parameters.
    """
    index, width = shape.layers + number, shape.width
    name = f"layers.{index}"
    yield _norm(shape, f"{name}.hidden_norm", tokens)
    yield _norm(shape, f"{name}.word_norm", tokens)
    yield nn.linear(f"{name}.join", 2 * width, width, tokens, bias=False)
    yield from _block(shape, name, index, tokens, cross=False)
    yield _norm(shape, f"ahead.{number}.norm", tokens)
    yield nn.tied_linear(f"ahead.{number}.lm_head", width, shape.vocabulary, tokens)


def _norm(shape: Transformer, name: str, tokens: int, width: int = 0) -> Layer:
    kind = nn.rmsnorm if shape.norm == "rms" else nn.layernorm
    return kind(name, width or shape.width, tokens)


def _block(shape: Transformer, name: str, index: int, tokens: int, *,
           cross: bool) -> Iterator[Layer]:
    attend = _latent_attention if shape.latent else _attention
    yield _norm(shape, f"{name}.input_norm", tokens)
    yield from attend(shape, f"{name}.attention", tokens, shape.seen(index, tokens))
    if shape.norms == 4:
        yield _norm(shape, f"{name}.attention_norm", tokens)
    if cross:
        yield _norm(shape, f"{name}.cross_norm", tokens)
        yield from _attention(shape, f"{name}.cross", tokens, tokens)
    yield _norm(shape, f"{name}.post_norm", tokens)
    if shape.has_experts(index):
        yield from _mixture(shape, f"{name}.moe", tokens)
    else:
        yield from _network(shape, f"{name}.mlp", shape.inner, tokens)
    if shape.norms == 4:
        yield _norm(shape, f"{name}.mlp_norm", tokens)


def _attention(shape: Transformer, name: str, tokens: int, seen: int) -> Iterator[Layer]:
    width, size = shape.width, shape.head_size
    bias = shape.bias in ("qkv", "all")
    inner = shape.heads * size
    yield nn.linear(f"{name}.query", width, inner, tokens, bias=bias)
    for part in ("key", "value"):
        yield nn.linear(f"{name}.{part}", width, shape.kv * size, tokens, bias=bias)
    if shape.qk_norm:
        for part, heads in (("query", shape.heads), ("key", shape.kv)):
            yield _norm(shape, f"{name}.{part}_norm", tokens * heads, size)
    yield nn.product(f"{name}.scores", 2 * 2 * tokens * seen * inner)
    yield nn.linear(f"{name}.output", inner, width, tokens, bias=shape.bias == "all")


def _latent_attention(shape: Transformer, name: str, tokens: int, seen: int) -> Iterator[Layer]:
    """DeepSeek-V2 (2024), section 2.1.2 and equations 9 to 19."""
    latent, width, heads = shape.latent, shape.width, shape.heads
    assert latent is not None
    keyed = latent.nope + latent.rope
    if latent.q_rank:
        yield nn.linear(f"{name}.query_down", width, latent.q_rank, tokens, bias=False)
        yield _norm(shape, f"{name}.query_norm", tokens, latent.q_rank)
    yield nn.linear(f"{name}.query", latent.q_rank or width, heads * keyed, tokens, bias=False)
    yield nn.linear(f"{name}.latent", width, latent.kv_rank + latent.rope, tokens, bias=False)
    yield _norm(shape, f"{name}.latent_norm", tokens, latent.kv_rank)
    yield nn.linear(f"{name}.key_value", latent.kv_rank, heads * (latent.nope + latent.value),
                    tokens, bias=False)
    yield nn.product(f"{name}.scores", 2 * tokens * seen * heads * (keyed + latent.value))
    yield nn.linear(f"{name}.output", heads * latent.value, width, tokens, bias=False)


def _network(shape: Transformer, name: str, inner: int, tokens: int) -> list[Layer]:
    bias, width = shape.bias == "all", shape.width
    if shape.gated:
        return nn.gated_ffn(name, width, inner, tokens)
    return [nn.linear(f"{name}.in", width, inner, tokens, bias=bias),
            nn.linear(f"{name}.out", inner, width, tokens, bias=bias)]


def _mixture(shape: Transformer, name: str, tokens: int) -> Iterator[Layer]:
    """Router, experts and, behind them, what all tokens share."""
    mix, width = shape.experts, shape.width
    assert mix is not None
    bias = shape.bias == "all"
    yield nn.linear(f"{name}.router", width, mix.count, tokens, bias=bias)
    matrices = 3 if shape.gated else 2
    slots = tokens * mix.top_k
    flops = 2 * matrices * width * mix.ffn * slots
    parts = ("gate", "up", "down") if shape.gated else ("in", "out")
    weights = tuple(Tensor(f"{name}.experts.{part}", width * mix.ffn * mix.count)
                    for part in parts)
    if bias:
        out = (matrices - 1) * mix.ffn + width
        weights += (Tensor(f"{name}.experts.bias", out * mix.count),)
    yield Layer(f"{name}.experts", (), flops, 2 * flops, slots * width, weights,
                mix.count, mix.top_k, mix.groups, mix.top_groups)
    if mix.shared:
        yield from _network(shape, f"{name}.shared", mix.shared, tokens)
        if mix.shared_gate:
            yield nn.linear(f"{name}.shared.weight", width, 1, tokens, bias=False)
