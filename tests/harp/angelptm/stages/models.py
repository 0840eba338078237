"""Models that are awkward to cut: tied weights, values that skip stages, tables, trees, writes."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (as everybody calls it)
from torch import nn

WORDS, WIDTH, LENGTH, HEADS = 64, 32, 12, 4


def attend(q, k, v, causal):
    q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)


class Block(nn.Module):
    def __init__(self, causal=True, across=False):
        super().__init__()
        self.causal = causal
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        if across:
            self.query, self.memory = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x, encoded=None, turn=None):
        q, k, v = self.qkv(self.before(x)).chunk(3, -1)
        if turn is not None:
            q, k = turn(q), turn(k)
        x = x + self.out(attend(q, k, v, self.causal))
        if encoded is not None:
            x = x + attend(self.query(x), *self.memory(encoded).chunk(2, -1), causal=False)
        return x + self.down(F.gelu(self.up(self.after(x))))


class GPT(nn.Module):
    """Tied weights in the first and the last stage."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class T5(nn.Module):
    """The encoder's output and the decoder's tokens skip stages; three users of one table."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.ModuleList(Block(causal=False) for _ in range(2))
        self.decoder = nn.ModuleList(Block(across=True) for _ in range(2))

    def forward(self, tokens, said):
        encoded = self.words(tokens)
        for block in self.encoder:
            encoded = block(encoded)
        x = self.words(said)
        for block in self.decoder:
            x = block(x, encoded)
        return {"logits": F.linear(x, self.words.weight), "encoded": encoded}


class Rotary(nn.Module):
    """Tables without gradient that all layers read, a buffer, and a change in place."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.register_buffer("rates", 10 ** -torch.linspace(0, 4, WIDTH // 2))
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, tokens):
        with torch.no_grad():
            angles = torch.arange(tokens.shape[1])[:, None] * self.rates
            cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

        def turn(x):
            first, second = x.chunk(2, -1)
            return x * cos + torch.cat((-second, first), -1) * sin

        x = self.words(tokens)
        x += 0.1
        for block in self.blocks:
            x = block(x, turn=turn)
        return F.linear(x, self.words.weight)


class Choosing(nn.Module):
    """Looks at the values of a tensor, in a module inside."""

    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            if x.sum() > 0:
                return self.linear(x)
            return x * self.linear.weight.sum()

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.gates = nn.ModuleList(self.Gate() for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.words(tokens)
        for gate in self.gates:
            x = x + gate(x)
        return self.head(x)


MODELS = {"gpt": GPT, "t5": T5, "rotary": Rotary, "choosing": Choosing}


def made(name, seed=0):
    """Make a model, the same each time."""
    torch.manual_seed(seed)
    return MODELS[name]()


def batch(name, rows, seed=1):
    """Give arguments and targets."""
    generator = torch.Generator().manual_seed(seed)
    tokens, said, target = torch.randint(0, WORDS, (3, rows, LENGTH), generator=generator)
    return ((tokens, said) if name == "t5" else (tokens,)), target


def loss_of(output, target):
    """Of a dictionary, both entries count."""
    if isinstance(output, dict):
        return loss_of(output["logits"], target) + output["encoded"].square().mean()
    return F.cross_entropy(output.flatten(0, 1), target.flatten())
