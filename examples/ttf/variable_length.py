"""Train a model on sentences of many lengths, compiled without a recompile for each.

    python examples/ttf/variable_length.py --cache /tmp/compiled

A reader of sentences: embeddings, attention with a mask, a mean over places. The first
batches run eagerly while a copy is compiled aside; with --cache a second run compiles nothing.
"""

import argparse
import logging
import time

import torch
from torch import nn

import harp.ttf

WORDS, WIDTH, BATCH = 500, 32, 16


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, ids, mask=None):
        if mask is None:
            mask = torch.ones(ids.shape[1], dtype=torch.bool)
        query, key, value = self.qkv(self.words(ids)).chunk(3, -1)
        scores = (query @ key.transpose(1, 2) / WIDTH**0.5).masked_fill(~mask, float("-inf"))
        mixed = torch.softmax(scores, -1) @ value
        mean = (mixed * mask[:, None]).sum(1) / mask.sum()
        return self.out(mean).squeeze(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--longest", type=int, default=48)
    parser.add_argument("--cache", help="a folder for decisions and compiled code")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    given = parser.parse_args()
    for name in ("steps", "longest"):
        if getattr(given, name) < 2:
            parser.error(f"--{name} is {getattr(given, name)}; at least 2 is needed")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("harp").setLevel(logging.INFO)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the model is tiny
    reader = Reader()
    model = harp.ttf.compile(reader, cache=given.cache, mask="mask", backend=given.backend)
    optimizer = torch.optim.Adam(reader.parameters(), lr=3e-3)
    lengths, losses, begin = set(), [], time.perf_counter()
    for _ in range(given.steps):
        ids = torch.randint(0, WORDS, (BATCH, int(torch.randint(2, given.longest + 1, ()))))
        lengths.add(ids.shape[1])
        wanted = (ids % 2).float().mean(1)
        loss = nn.functional.mse_loss(model(ids), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    took = time.perf_counter() - begin
    model.wait()
    tenth = max(1, given.steps // 10)
    print(f"loss {sum(losses[:tenth]) / tenth:.4f}, at the end {sum(losses[-tenth:]) / tenth:.4f}")
    print(f"{given.steps} steps of {len(lengths)} lengths in {took:.1f} s")
    print(*model.decisions(), sep="\n")


if __name__ == "__main__":
    main()
