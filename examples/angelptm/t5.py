"""Train an encoder-decoder like T5 whose states fit neither into the device nor the host.

    python examples/angelptm/t5.py
    python examples/angelptm/t5.py --layers 12 --width 1024 --device-mib 512 --host-mib 1024

It learns to say a sentence backwards. The encoder's output and the tables of relative positions
are used in many places, and pages come and go between their uses.
"""

import argparse
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn

import harp.angelptm as deepspeed

WORDS, LENGTH = 512, 64


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, other, bias=None, causal=False):
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for one in (self.q(x), self.k(other), self.v(other)))
        if causal:
            unseen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            bias = bias.masked_fill(unseen, float("-inf"))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads, decodes):
        super().__init__()
        self.decodes = decodes
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3 if decodes else 2))
        self.own = Attention(width, heads)
        self.across = Attention(width, heads) if decodes else None
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x, bias, encoded=None):
        seen = self.norms[0](x)
        x = x + self.own(seen, seen, bias, self.decodes)
        if self.decodes:
            x = x + self.across(self.norms[1](x), encoded)
        return x + self.down(F.relu(self.up(self.norms[-1](x))))


class Stack(nn.Module):
    """Blocks with one table of relative positions, as T5 has it, without its buckets."""

    def __init__(self, layers, width, heads, decodes):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, decodes) for _ in range(layers))
        self.far = nn.Embedding(2 * LENGTH - 1, heads)
        self.norm = nn.RMSNorm(width)

    def forward(self, x, encoded=None):
        place = torch.arange(x.shape[1], device=x.device)
        bias = self.far(place[None, :] - place[:, None] + LENGTH - 1).permute(2, 0, 1)
        for block in self.blocks:
            x = block(x, bias, encoded)
        return self.norm(x)


class T5(nn.Module):
    def __init__(self, layers, width, heads):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        nn.init.normal_(self.words.weight, std=0.05)
        self.encoder = Stack(layers, width, heads, decodes=False)
        self.decoder = Stack(layers, width, heads, decodes=True)
        self.scale = width ** -0.5

    def forward(self, tokens, said):
        encoded = self.encoder(self.words(tokens))
        return F.linear(self.decoder(self.words(said), encoded) * self.scale, self.words.weight)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, value in (("layers", 3), ("width", 512), ("steps", 10), ("batch", 4),
                        ("device-mib", 64), ("host-mib", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--disk", default=tempfile.gettempdir(), help="a folder on the disk to use")
    parser.add_argument("--device", default="accelerator", choices=("accelerator", "cpu"),
                        help="cpu trains on the CPU where there is a GPU, as several ranks must")
    given = parser.parse_args()
    if given.width < 64 or given.width % 64:
        parser.error(f"--width is {given.width}: a multiple of 64 is possible, for heads of 64")
    torch.manual_seed(0)
    model = T5(given.layers, given.width, given.width // 64)
    elements = sum(parameter.numel() for parameter in model.parameters())
    try:
        engine, *_ = deepspeed.initialize(model=model, config={
            "train_micro_batch_size_per_gpu": given.batch,
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
            "zero_optimization": {"stage": 3, "offload_optimizer": {
                "device": "nvme", "nvme_path": given.disk}},
            "angelptm": {"device": given.device,
                         "device_bytes": given.device_mib << 20,
                         "host_bytes": given.host_mib << 20},
        })
    except (deepspeed.ConfigError, deepspeed.CapacityError, OSError) as error:
        print(f"t5.py: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{elements / 1e6:.1f} M parameters, {elements * 16 >> 20} MiB of states in "
          f"{engine.describe()}")
    tokens = torch.randint(1, WORDS, (given.batch, LENGTH)).to(engine.device)
    backwards = tokens.flip(1)
    said = F.pad(backwards[:, :-1], (1, 0))  # word 0 begins
    for step in range(given.steps):
        begun = time.perf_counter()
        loss = F.cross_entropy(engine(tokens, said).flatten(0, 1), backwards.flatten())
        engine.backward(loss)
        engine.step()
        print(f"step {step}: loss {loss.item():.4f}, {time.perf_counter() - begun:.2f} s")


if __name__ == "__main__":
    main()
