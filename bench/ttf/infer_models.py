"""Six public model shapes for inference, with random weights and one example each.

mlp         the top MLP of MLPerf's DLRM: 479-1024-1024-512-256-1 (mlcommons/inference)
wide-deep   Wide & Deep: 26 tables of 10,000 x 32 and 13 dense features, MLP 1024-512-256
            (Cheng et al., 2016; features of Criteo's data)
resnet-18   He et al., 2015, 224 x 224
bert-16,    BERT-base (Devlin et al., 2018): 12 layers of 768, at 16 and 128 tokens
bert-128
gpt-decode  a GPT of 6 layers of 384, one token on 256 cached ones (the "baby" size of nanoGPT)
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn


def mlp_of(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between."""
    layers: list[Any] = []
    for given, made in pairwise(widths):
        layers += [nn.Linear(given, made), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class WideDeep(nn.Module):
    """A linear part over ids, and an MLP over their embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Embedding(10_000, 1) for _ in range(26))
        self.deep = nn.ModuleList(nn.Embedding(10_000, 32) for _ in range(26))
        self.mlp = mlp_of(26 * 32 + 13, 1024, 512, 256, 1)

    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Give the probability of a click."""
        wide = sum(table(ids[:, place]) for place, table in enumerate(self.wide))
        deep = [table(ids[:, place]) for place, table in enumerate(self.deep)]
        return torch.sigmoid(wide + self.mlp(torch.cat([*deep, dense], 1)))


class DecodeLayer(nn.Module):
    """A layer of GPT over one token, with keys and values of those before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, keys: torch.Tensor,
                values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Give the token, and the caches with it."""
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                             for part in self.qkv(self.before(x)).chunk(3, -1))
        keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        mixed = nn.functional.scaled_dot_product_attention(query, keys, values)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.after(x)), keys, values


class Decode(nn.Module):
    """A step of a small GPT."""

    def __init__(self, layers: int = 6, width: int = 384, heads: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(50_304, width)
        self.layers = nn.ModuleList(DecodeLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, token: torch.Tensor, keys: torch.Tensor,
                values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Give the next token's scores, and the caches."""
        x, caches = self.words(token), []
        for number, layer in enumerate(self.layers):
            x, *cache = layer(x, keys[number], values[number])
            caches.append(cache)
        scores = nn.functional.linear(self.norm(x), self.words.weight)
        return (scores, torch.stack([key for key, _ in caches]),
                torch.stack([value for _, value in caches]))


def bert(tokens: int) -> tuple[nn.Module, Any]:
    """BERT-base at a length."""
    from transformers import BertConfig, BertModel
    model = BertModel(BertConfig())
    return Answers(model), (torch.randint(0, 30_000, (1, tokens)),)


class Answers(nn.Module):
    """A model of transformers that gives tensors alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: torch.Tensor) -> Any:
        """Answer."""
        found = self.model(given)
        return found.pooler_output if "pooler_output" in found else found.logits


def resnet_18() -> tuple[nn.Module, Any]:
    """ResNet-18 out of transformers' ResNet."""
    from transformers import ResNetConfig, ResNetForImageClassification
    model = ResNetForImageClassification(ResNetConfig(
        depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic"))
    return Answers(model), (torch.randn(1, 3, 224, 224),)


def models() -> dict[str, Any]:
    """Give makers of a model and its example, by name."""
    caches = (6, 1, 6, 256, 64)
    return {
        "mlp": lambda: (mlp_of(479, 1024, 1024, 512, 256, 1), (torch.randn(64, 479),)),
        "wide-deep": lambda: (WideDeep(), (torch.randint(0, 10_000, (64, 26)),
                                           torch.randn(64, 13))),
        "resnet-18": resnet_18, "bert-16": lambda: bert(16), "bert-128": lambda: bert(128),
        "gpt-decode": lambda: (Decode(), (torch.randint(0, 50_304, (1, 1)), torch.randn(*caches),
                                          torch.randn(*caches)))}
