"""Train a mixture of experts that is spread over two hosts of two ranks.

    python examples/angelptm/moe.py
    harp run -np 4 python examples/angelptm/moe.py --rank

The first, as root, makes two hosts of network namespaces that a link of 100 Mb/s joins, trains, and
compares algorithms that send tokens to their experts. The second is what it starts at each rank;
so, on real hosts, the experts are spread over all ranks of a job.
"""

import argparse
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import harp.lightcc.torch  # noqa: F401  (registers the backend)
from harp.angelptm.moe import MoE

RATE_BPS, HOSTS, RANKS = 100e6, 2, 4
WORDS, WIDTH, EXPERTS, TOP_K = 256, 256, 32, 8


def feed_forward(number):
    torch.manual_seed(number)  # ranks have different experts
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))


class Model(nn.Module):
    """Says which word follows another one: a table that it must learn."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.experts = MoE(WIDTH, EXPERTS, TOP_K, feed_forward)
        torch.manual_seed(EXPERTS)  # what all ranks have is the same
        nn.init.normal_(self.words.weight)
        nn.init.normal_(self.experts.router.weight, std=0.05)
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.words(tokens)
        return self.out(self.norm(x + self.experts(x)))


def average(model):
    """Average over ranks; the gradients of experts are sums over all ranks' tokens already."""
    own = {id(one) for one in model.experts.expert_parameters()}
    for parameter in model.parameters():
        if id(parameter) not in own:
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        elif parameter.grad is not None:
            parameter.grad /= dist.get_world_size()


def train(model, steps, tokens):
    table = torch.randperm(WORDS, generator=torch.Generator().manual_seed(1))
    drawing = torch.Generator().manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for step in range(steps):
        given = torch.randint(WORDS, (tokens,), generator=drawing)
        loss = F.cross_entropy(model(given), table[given])
        optimizer.zero_grad()
        (loss + 0.01 * model.experts.balance).backward()
        average(model)
        optimizer.step()
        dist.all_reduce(loss := loss.detach(), dist.ReduceOp.AVG)
        if dist.get_rank() == 0 and (step % 10 == 0 or step == steps - 1):
            print(f"step {step}: loss {loss:.4f}, balance {model.experts.balance:.2f}", flush=True)


def compare(tokens):
    """Print how long the experts take, both passes, by each way."""
    x = torch.randn(tokens, WIDTH)
    for way in ("direct", "once-per-host"):
        layer = MoE(WIDTH, EXPERTS, TOP_K, feed_forward, way=way)
        dist.broadcast(layer.router.weight.detach(), 0)
        times = []
        for _ in range(4):
            dist.barrier()
            begun = time.perf_counter()
            layer(x.requires_grad_()).sum().backward()
            dist.barrier()
            times.append(1e3 * (time.perf_counter() - begun))
        if dist.get_rank() == 0:
            print(f"{way}: {min(times):.0f} ms, forwards and backwards")


def rank(given):
    dist.init_process_group("lightcc")
    torch.set_num_threads(1)
    train(Model(), given.steps, given.tokens)
    compare(given.tokens)
    dist.destroy_process_group()


def on_two_hosts(words):
    from lab.veth import veth_pair

    with veth_pair() as ends:
        for end in ends:
            end.shape(RATE_BPS)
        with ends[0].space.entered(), socket.create_server((ends[0].ipv4, 0)) as free:
            port = free.getsockname()[1]
        ranks = [end.space.start(
            sys.executable, "-W", "ignore", __file__, "--rank", *words,
            env={**os.environ, "RANK": str(number), "WORLD_SIZE": str(RANKS),
                 "MASTER_ADDR": ends[0].ipv4, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"})
            for number, end in enumerate(end for end in ends for _ in range(RANKS // HOSTS))]
        return max(process.wait() for process in ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rank", action="store_true", help="be one rank, by torchrun's variables")
    for name, value in (("steps", 21), ("tokens", 512)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    if given.tokens < 1:
        parser.error(f"--tokens is {given.tokens}: a number of at least 1 is possible")
    if given.rank:
        rank(given)
    else:
        sys.exit(on_two_hosts(["--steps", str(given.steps), "--tokens", str(given.tokens)]))


if __name__ == "__main__":
    main()
