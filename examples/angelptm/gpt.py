"""Train a GPT whose states fit neither into the device nor the host: the rest is on disk.

    python examples/angelptm/gpt.py
    harp run -np 2 python examples/angelptm/gpt.py
    python examples/angelptm/gpt.py --layers 24 --width 1024 --device-mib 512 --host-mib 1024

Several ranks shard the states; each trains on a batch of its own. On a CPU the device's memory is
an arena of the size that is given, and operators read parameters nowhere else.
"""

import argparse
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn

import harp.angelptm as deepspeed


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for part in self.qkv(self.before(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.after(x))))


class GPT(nn.Module):
    def __init__(self, layers, width, heads, words=1024, length=256):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight)  # tied


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, value in (("layers", 8), ("width", 512), ("steps", 10), ("batch", 4),
                        ("device-mib", 64), ("host-mib", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--disk", default=tempfile.gettempdir(), help="a folder on the disk to use")
    parser.add_argument("--device", default="accelerator", choices=("accelerator", "cpu"),
                        help="cpu trains on the CPU where there is a GPU, as several ranks must")
    given = parser.parse_args()
    if given.width < 64 or given.width % 64:
        parser.error(f"--width is {given.width}: a multiple of 64 is possible, for heads of 64")
    torch.manual_seed(0)
    model = GPT(given.layers, given.width, given.width // 64)
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
    except (deepspeed.ConfigError, deepspeed.CapacityError, deepspeed.RankError, OSError) as error:
        print(f"gpt.py: {error}", file=sys.stderr)
        sys.exit(2)
    if engine.global_rank == 0:
        print(f"{elements / 1e6:.1f} M parameters, {elements * 16 >> 20} MiB of states over "
              f"{engine.world_size} ranks, here in {engine.describe()}")
    torch.manual_seed(engine.global_rank)
    tokens = torch.randint(0, 1024, (given.batch, 257)).to(engine.device)
    for step in range(given.steps):
        begun = time.perf_counter()
        logits = engine(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        engine.backward(loss)
        engine.step()
        if engine.global_rank == 0:
            print(f"step {step}: loss {loss.item():.4f}, {time.perf_counter() - begun:.2f} s")


if __name__ == "__main__":
    main()
