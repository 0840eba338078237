"""Small models and their data: a CNN on scikit-learn's digits, transformers on text.

The text is this repository's pages. Figures are of data that were held back from training. Label
smoothing keeps the least possible loss above zero, so that losses can be compared by their ratio.
Needs scikit-learn and torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Batch = tuple[torch.Tensor, torch.Tensor]

ROOT = Path(__file__).resolve().parents[2]
SMOOTHING = 0.1
SYMBOLS = 128
HELD_WINDOWS = 400
DIGITS_BATCH, TEXT_BATCH = 32, 8
"""Images and windows a rank and step."""


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


@dataclass(frozen=True)
class Shape:
    """The size of a transformer."""

    context: int = 32
    width: int = 48
    blocks: int = 2
    heads: int = 4


class Text(nn.Module):
    """A transformer decoder over bytes."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__()
        shape = shape or Shape()
        self.symbols = nn.Embedding(SYMBOLS, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(
            shape.width, shape.heads, 4 * shape.width, dropout=0.0, batch_first=True,
            norm_first=True), shape.blocks, nn.LayerNorm(shape.width), enable_nested_tensor=False)
        self.out = nn.Linear(shape.width, SYMBOLS)
        self.mask = nn.Transformer.generate_square_subsequent_mask(shape.context)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Give the next symbol's logits, at every place."""
        known = self.symbols(text) + self.places(torch.arange(text.shape[1]))
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


def smooth_loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Give the mean cross-entropy with label smoothing."""
    return functional.cross_entropy(logits, wanted, label_smoothing=SMOOTHING)


def held_figures(net: nn.Module, held: Batch) -> dict[str, float]:
    """Give loss and accuracy on data that were held back."""
    given, wanted = held
    with torch.no_grad():
        logits = net(given)
        return {"loss": float(smooth_loss(logits, wanted)),
                "accuracy": float((logits.argmax(1) == wanted).float().mean())}


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
    """Draw images of a rank."""
    (pixels, classes), _ = digits()
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    while True:
        drawn = torch.randint(len(classes), (DIGITS_BATCH,), generator=generator)
        yield pixels[drawn], classes[drawn]


def text() -> tuple[torch.Tensor, torch.Tensor]:
    """Give the text to train on and another."""
    pages = "\n".join(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))
    symbols = torch.tensor(list(pages.encode("ascii", "ignore")))
    return symbols[:len(symbols) * 9 // 10], symbols[len(symbols) * 9 // 10:]


def windows(symbols: torch.Tensor, starts: torch.Tensor, context: int) -> Batch:
    """Give texts and what follows each of their symbols."""
    rows = torch.stack([symbols[start:start + context + 1] for start in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


def text_task(shape: Shape, batch: int = TEXT_BATCH, held_back: int = HELD_WINDOWS) -> Task:
    """Make the task of a transformer of some size, by windows a rank and step, and held back."""
    def batches(seed: int, rank: int) -> Iterator[Batch]:
        symbols, _ = text()
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        while True:
            starts = torch.randint(len(symbols) - shape.context - 1, (batch,), generator=generator)
            yield windows(symbols, starts, shape.context)

    def held() -> Batch:
        symbols = text()[1]
        starts = torch.linspace(0, len(symbols) - shape.context - 2, held_back).long()
        return windows(symbols, starts, shape.context)

    return Task(lambda: Text(shape), batches, held)


TASKS = {"CNN on digits": Task(Digits, digit_batches, lambda: digits()[1]),
         "transformer on text": text_task(Shape())}
