"""Small models and their training, for the tests of AngelPTM."""

from __future__ import annotations

import contextlib

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import harp.angelptm

WORDS, WIDTH, PAGE = 100, 64, 16384
RATE = 1e-3


class Tied(nn.Module):
    """A model with all that is awkward: tied weights, a branch, a layer without use, a scalar."""

    def __init__(self, branch=lambda: False):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        nn.init.normal_(self.words.weight, std=0.1)
        self.layers = nn.ModuleList([nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(4)])
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.branch = branch

    def forward(self, tokens):
        hidden = self.words(tokens)
        for layer in self.layers:
            hidden = hidden + self.scale * layer(hidden)
        if self.branch():
            hidden = hidden + self.unused(hidden)
        return nn.functional.linear(hidden, self.words.weight)


def seeded(make=Tied, seed=0, **how):
    """Make a model with the same parameters each time."""
    torch.manual_seed(seed)
    return make(**how)


def batches(number, seed=1):
    """Give batches of tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, WORDS, (4, 16), generator=generator) for _ in range(number)]


def loss_of(model, tokens):
    """The word to say follows from the word that was heard."""
    return cross_entropy(model(tokens).float().flatten(0, 1), (tokens.flatten() * 7 + 1) % WORDS)


def config(device=None, host=None, page=PAGE, **more):
    """A configuration with caps in pages, on the CPU wherever the tests run."""
    memory = {"page_bytes": page, "device": "cpu", **more.pop("angelptm", {})}
    if device is not None:
        memory |= {"device_bytes": device * page, "host_bytes": host * page}
    return {"optimizer": {"type": "AdamW", "params": {"lr": RATE}}, "angelptm": memory, **more}


@contextlib.contextmanager
def engine_of(model, how, **more):
    """An engine, whose memory is given back."""
    engine, *_ = harp.angelptm.initialize(model=model, config=how, **more)
    try:
        yield engine
    finally:
        engine.destroy()


def train(engine, data):
    """Train; gives the losses."""
    losses = []
    for tokens in data:
        loss = loss_of(engine, tokens)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def by_torch(model, data, *, accumulation=1, clipping=0.0, optimizer=None):
    """Train without pages; gives the losses."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=RATE)
    losses = []
    for number, tokens in enumerate(data, 1):
        loss = loss_of(model, tokens)
        (loss / accumulation).backward()
        losses.append(loss.item())
        if number % accumulation == 0:
            if clipping:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clipping)
            optimizer.step()
            optimizer.zero_grad()
    return losses


def parameters_of(engine):
    """Copy all parameters."""
    with engine.watched():
        return [parameter.detach().float().clone() for parameter in engine.module.parameters()]
