"""Five models of transformers' library, with random parameters, for cuts into stages.

Shapes are the published ones of GPT-2 small, T5 small, BERT base and ViT base, with the heads that
they are pretrained with; the fifth is Llama 2 7B with an eighth of all widths and words and a
quarter of its layers, so that its head is to a layer what it is there. Nothing is downloaded. Where
a head is worth several layers, as in GPT-2, no cut between operators helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, LENGTH = 1, 128


class Logits(nn.Module):
    """A model of transformers that takes tensors and gives one."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        """Give the logits."""
        logits: torch.Tensor = self.model(**dict(zip(self.names, given, strict=True)),
                                          **NO_CACHE.get(type(self.model).__name__, {})).logits
        return logits


NO_CACHE: dict[str, dict[str, bool]] = {
    name: {"use_cache": False} for name in (
        "GPT2LMHeadModel", "T5ForConditionalGeneration", "LlamaForCausalLM")}


def tokens(words: int) -> torch.Tensor:
    """Draw some."""
    return torch.randint(0, words, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))


def gpt2() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """12 layers of width 768, and a head of 50257 words, which is tied."""
    from transformers import GPT2Config, GPT2LMHeadModel
    return Logits(GPT2LMHeadModel(GPT2Config()), "input_ids"), (tokens(50257),)


def t5() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """6 and 6 layers of width 512."""
    from transformers import T5Config, T5ForConditionalGeneration
    model = T5ForConditionalGeneration(T5Config(num_layers=6))
    return Logits(model, "input_ids", "decoder_input_ids"), (tokens(32128), tokens(32128))


def bert() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """12 layers of width 768, and a head of 30522 words, which is tied."""
    from transformers import BertConfig, BertForMaskedLM
    return Logits(BertForMaskedLM(BertConfig()), "input_ids"), (tokens(30522),)


def llama() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """8 layers of width 512 with tables of rotations."""
    from transformers import LlamaConfig, LlamaForCausalLM
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=4000, hidden_size=512, intermediate_size=1376, num_hidden_layers=8,
        num_attention_heads=4))
    return Logits(model, "input_ids"), (tokens(4000),)


def vit() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """12 layers of width 768 over patches of a picture."""
    from transformers import ViTConfig, ViTForImageClassification
    return (Logits(ViTForImageClassification(ViTConfig()), "pixel_values"),
            (torch.randn(ROWS, 3, 224, 224),))


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "gpt2": gpt2, "t5": t5, "bert": bert, "llama": llama, "vit": vit}


def loss_of(logits: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
    """Compare the logits with a target: the words of a sentence, or one class of a picture."""
    logits = logits.flatten(0, -2)
    if target is None:
        target = torch.zeros(len(logits), dtype=torch.long)
    return nn.functional.cross_entropy(logits, target.flatten())
