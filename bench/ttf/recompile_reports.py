"""Twelve small trainings and inferences out of public reports of needless recompiles.

Each names the report, and the fewest compilations that it can run with: one for each graph that
differs by more than a size or a number. Sizes are drawn anew for each run, the same in each.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    Compile = Callable[[Any], Any]
    """Compiles a module, or an optimizer's step."""
    Step = Callable[[int], torch.Tensor]
    """Runs a step by its number, and gives a figure that shows whether it was right."""

WIDTH = 128


@dataclass(frozen=True)
class Report:
    """A report, and a program that shows what it describes."""

    name: str
    url: str
    make: Callable[[Compile], Step]
    fewest: int = 1


def _training(model: nn.Module, call: Callable[[int], torch.Tensor]) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(number: int) -> torch.Tensor:
        loss = call(number)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step


def _sizes(least: int, most: int, every: int = 1) -> list[int]:
    draw = random.Random(0)
    return [draw.randrange(least, most + 1, every) for _ in range(1000)]


class Net(nn.Module):
    """An MLP with residuals, a counter, and a float argument."""

    def __init__(self, *, counts: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.counts, self.calls = counts, 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """Give a row for each."""
        if self.counts:
            self.calls += 1
        for layer in self.layers:
            x = x + scale * torch.tanh(nn.functional.layer_norm(layer(x), (WIDTH,)))
        return x


def _optimizer(schedule: Callable[[Any], Any], metric: bool = False) -> Callable[[Compile], Step]:
    """Compile AdamW's step under a schedule; the gradients are those of pulling towards one."""
    def make(compiled: Compile) -> Step:
        weights = [nn.Parameter(torch.randn(192, 192)) for _ in range(8)]
        optimizer = torch.optim.AdamW(weights, lr=1e-3)
        advance, take = schedule(optimizer), compiled(optimizer)

        def step(number: int) -> torch.Tensor:
            for weight in weights:
                weight.grad = weight.detach() - 1
            take()
            # A plateau of five steps lowers the rate every seventh.
            advance.step(*([1.0 / (1 + number // 7)] if metric else []))
            return weights[0].detach().mean()
        return step
    return make


def _warm_up(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 800))


def _plateau(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.99, patience=3)


def _one_cycle(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=2000)


def _counter(compiled: Compile) -> Step:
    model, batch = Net(counts=True), torch.randn(128, WIDTH)
    run = compiled(model)
    return _training(model, lambda _: run(batch).square().mean())


def _float_argument(compiled: Compile) -> Step:
    model, batch = Net(), torch.randn(128, WIDTH)
    run = compiled(model)
    return _training(model, lambda number: run(batch, 0.5 + 0.0005 * number).square().mean())


def _ragged_tail(compiled: Compile) -> Step:
    model, batch = Net(), torch.randn(128, WIDTH)
    run = compiled(model)
    return _training(model, lambda number: run(
        batch if number % 20 != 19 else batch[:37]).square().mean())


class Reader(nn.Module):
    """A layer of attention over a batch of sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give a row for each place."""
        query, key, value = self.qkv(x).chunk(3, -1)
        scores = torch.softmax(query @ key.transpose(1, 2) / WIDTH**0.5, -1)
        return x + nn.functional.gelu(self.out(scores @ value))


def _lengths(compiled: Compile) -> Step:
    model, batch, sizes = Reader(), torch.randn(4, 64, WIDTH), _sizes(8, 64)
    run = compiled(model)
    return _training(model, lambda number: run(batch[:, :sizes[number]]).square().mean())


class Graph(nn.Module):
    """Two rounds of messages along edges."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Give a row for each node."""
        for layer in self.layers:
            heard = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
            x = torch.tanh(layer(torch.cat([x, heard], 1)))
        return x


def _graphs(compiled: Compile) -> Step:
    model, features = Graph(), torch.randn(200, WIDTH)
    nodes, edges = _sizes(50, 200), _sizes(300, 999)
    ends = torch.randint(0, 50, (2, 999))
    run = compiled(model)
    return _training(model, lambda number: run(
        features[:nodes[number]], ends[:, :edges[number]].contiguous()).square().mean())


class Pixels(nn.Module):
    """Convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give a map of features."""
        return nn.functional.silu(self.second(nn.functional.silu(self.first(x))))


def _resolutions(compiled: Compile) -> Step:
    model, image, sizes = Pixels(), torch.randn(2, 3, 64, 64), _sizes(32, 64, 2)
    run = compiled(model)

    def call(number: int) -> torch.Tensor:
        height, width = sizes[number], sizes[-number]
        return run(image[:, :, :height, :width].contiguous()).square().mean()
    return _training(model, call)


class Token(nn.Module):
    """A layer of a decoder over one token and those before."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                 nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, keys: torch.Tensor,
                values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Give the token, and the caches with it."""
        query, key, value = self.qkv(nn.functional.layer_norm(x, (WIDTH,))).chunk(3, -1)
        keys, values = torch.cat([keys, key], 1), torch.cat([values, value], 1)
        scores = torch.softmax(query @ keys.transpose(1, 2) / WIDTH**0.5, -1)
        x = x + self.out(scores @ values)
        return x + self.mlp(nn.functional.layer_norm(x, (WIDTH,))), keys, values


def _growing_cache(compiled: Compile) -> Step:
    token, start = torch.randn(8, 1, WIDTH), torch.randn(8, 16, WIDTH)
    run, kept = compiled(Token().eval()), [start, start]

    def step(number: int) -> torch.Tensor:
        if number % 200 == 0:
            kept[:] = [start, start]
        with torch.no_grad():
            x, *kept[:] = run(token, *kept)
        return x.mean()
    return step


def _batch_sizes(compiled: Compile) -> Step:
    run, batch = compiled(Net().eval()), torch.randn(256, WIDTH)
    sizes = [8 * size for size in _sizes(1, 32)]

    def step(number: int) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = run(batch[:sizes[number]])
        return found[0].mean()
    return step


class Orthogonal(nn.Module):
    """Muon's update: five steps of Newton and Schulz."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Make the rows of a matrix orthogonal, or nearly so, with as little change as possible."""
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        return x


def _parameter_shapes(compiled: Compile) -> Step:
    run = compiled(Orthogonal())
    weights = [nn.Parameter(torch.randn(16 * rows, 16 * (rows + more)))
               for rows, more in zip(range(2, 12), (1, 5, 2, 8, 3, 1, 4, 6, 2, 1), strict=True)]

    def step(number: int) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = run(weights[number % len(weights)])
        return found.norm()
    return step


REPORTS = {report.name: report for report in (
    Report("warm-up", "https://github.com/pytorch/pytorch/issues/120934", _optimizer(_warm_up)),
    Report("plateau", "https://github.com/pytorch/pytorch/issues/163093",
           _optimizer(_plateau, metric=True)),
    Report("one-cycle", "https://github.com/pytorch/pytorch/issues/133898",
           _optimizer(_one_cycle)),
    Report("counter", "https://github.com/pytorch/pytorch/issues/128319", _counter),
    Report("float-argument", "https://github.com/pytorch/pytorch/issues/149406", _float_argument),
    Report("ragged-tail", "https://github.com/saforem2/ezpz/pull/190", _ragged_tail),
    Report("lengths", "https://github.com/pytorch/pytorch/issues/188150", _lengths),
    Report("graphs", "https://github.com/pytorch/pytorch/issues/94640", _graphs),
    Report("resolutions", "https://github.com/huggingface/diffusers/issues/5495", _resolutions),
    Report("growing-cache", "https://github.com/rasbt/LLMs-from-scratch/pull/705",
           _growing_cache),
    Report("batch-sizes", "https://github.com/NVIDIA/TensorRT-LLM/issues/6142", _batch_sizes),
    Report("parameter-shapes", "https://github.com/microsoft/dion/issues/23", _parameter_shapes),
)}
