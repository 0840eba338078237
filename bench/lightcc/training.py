"""A rank that trains two small models, dense and by top-k: ``-m bench.lightcc.training``.

The models are a CNN on scikit-learn's digits and a transformer on the text of this repository's
pages. The learning rate falls to zero, so that top-k has sent all gradients by the end. Figures are
those of data that were held back from training. Needs scikit-learn and torch.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import harp.lightcc.torch  # noqa: F401  (registers the backend)
from bench.lightcc.convergence import ARMS, MODELS
from harp.lightcc.hook import GradientState, Sparsity, average_gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Batch = tuple[torch.Tensor, torch.Tensor]

ROOT = Path(__file__).resolve().parents[2]
WARM_UP = (0.25, 0.12, 0.06, 0.03, 0.015)
"""Shares that are sent in the first 50 steps."""
SMOOTHING = 0.1
"""Label smoothing: so the least loss is above zero, and a share of it means something."""


class Digits(nn.Module):
    """Two convolutions and two linear layers, for 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Give each class's logit."""
        return self.layers(pixels)


CONTEXT, WIDTH, HEADS, BLOCKS, SYMBOLS = 32, 48, 4, 2, 128


class Text(nn.Module):
    """A transformer decoder over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True), BLOCKS,
            nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, SYMBOLS)
        self.mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Give the next symbol's logits, at every place."""
        known = self.symbols(text) + self.places(torch.arange(CONTEXT))
        logits: torch.Tensor = self.out(self.blocks(known, mask=self.mask, is_causal=True))
        return logits.transpose(1, 2)


@dataclass(frozen=True)
class Task:
    """A model and its data."""

    model: Callable[[], nn.Module]
    batches: Callable[[int, int], Iterator[Batch]]
    """By seed and rank, without end."""
    held: Callable[[], Batch]
    """Data that are held back from training."""
    rate: float
    steps: int


def digits() -> tuple[Batch, Batch]:
    """Give pixels and classes to train on and others."""
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    classes = torch.tensor(data.target)
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(0))
    first, last = order[:-360], order[-360:]
    return (pixels[first], classes[first]), (pixels[last], classes[last])


def digit_batches(seed: int, rank: int) -> Iterator[Batch]:
    """Draw 32 images a rank."""
    (pixels, classes), _ = digits()
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    while True:
        drawn = torch.randint(len(classes), (32,), generator=generator)
        yield pixels[drawn], classes[drawn]


def text() -> tuple[torch.Tensor, torch.Tensor]:
    """Give the text to train on and another."""
    pages = "\n".join(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))
    symbols = torch.tensor(list(pages.encode("ascii", "ignore")))
    return symbols[:len(symbols) * 9 // 10], symbols[len(symbols) * 9 // 10:]


def windows(symbols: torch.Tensor, starts: torch.Tensor) -> Batch:
    """Give texts and what follows each of their symbols."""
    rows = torch.stack([symbols[start:start + CONTEXT + 1] for start in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


def text_batches(seed: int, rank: int) -> Iterator[Batch]:
    """Draw 8 windows a rank."""
    symbols, _ = text()
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    while True:
        yield windows(symbols, torch.randint(len(symbols) - CONTEXT - 1, (8,),
                                             generator=generator))


def held_text() -> Batch:
    """Give windows that lie evenly in what is not trained on."""
    symbols = text()[1]
    return windows(symbols, torch.linspace(0, len(symbols) - CONTEXT - 2, 400).long())


TASKS = dict(zip(MODELS, (
    Task(Digits, digit_batches, lambda: digits()[1], 0.05, 800),
    Task(Text, text_batches, held_text, 0.1, 500)), strict=True))


def train(task: Task, arm: str, seed: int, steps: int) -> dict[str, Any]:
    """Train by one arm; gives the losses, and loss and accuracy on what was held back."""
    torch.manual_seed(seed)
    net = DistributedDataParallel(task.model())
    if arm != "dense":
        sparsity = Sparsity(warm_up=WARM_UP, warm_up_steps=10, feedback=arm == "top-k")
        net.register_comm_hook(GradientState(sparsity=sparsity), average_gradients)
    optimizer = torch.optim.SGD(net.parameters(), task.rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)))
    losses = []
    for _, (given, wanted) in zip(range(steps), task.batches(seed, dist.get_rank()), strict=False):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(given), wanted, label_smoothing=SMOOTHING)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(round(float(loss.detach()), 4))
    given, wanted = task.held()
    with torch.no_grad():
        logits = net.module(given)
        loss = functional.cross_entropy(logits, wanted, label_smoothing=SMOOTHING)
    right = float((logits.argmax(1) == wanted).float().mean())
    return {"arm": arm, "seed": seed, "losses": losses, "loss": float(loss), "accuracy": right}


def main(file: str, share: float, seeds: list[int], models: list[str]) -> None:
    """Train all arms of these models; rank 0 writes what came out."""
    torch.set_num_threads(1)
    dist.init_process_group("lightcc")
    found = {name: [train(TASKS[name], arm, seed, int(TASKS[name].steps * share))
                    for seed in seeds for arm in ARMS] for name in models}
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
