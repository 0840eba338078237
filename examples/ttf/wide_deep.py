"""Train Wide & Deep for five days of clicks, with half of the ids new each day.

    python examples/ttf/wide_deep.py
    python examples/ttf/wide_deep.py --ranks 4,1 --backend gloo --folder checkpoints

Two ranks train three days, save all after the first and deltas after the others, and end; three
ranks go on from there. Ids that a day did not see are evicted, so the tables do not grow for ever.
Each day is scored before it is trained on.
"""

import argparse
import os
import re
import socket
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from clicks import FEATURES, Clicks, auc, batches
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

import harp.lightcc.torch.backend  # noqa: F401  # the backend "lightcc"
from harp.ttf.embedding import (
    Adam,
    DynamicEmbeddingBag,
    EmbeddingCollection,
    Exchange,
    TableOptimizer,
)
from harp.ttf.embedding.checkpoint import load, save, tables_of

DAYS, FIRST_DAYS = 5, 3


class WideDeep(nn.Module):
    """A weight for each id, beside an MLP over rows: arXiv 1606.07792.

    A row of a table begins with the weight.
    """

    def __init__(self, tables, dim):
        super().__init__()
        self.tables = tables
        self.top = nn.Sequential(nn.Linear(len(FEATURES) * dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids):
        rows = torch.stack(list(self.tables(ids).values()), dim=1)
        wide, deep = rows[:, :, 0], rows[:, :, 1:]
        return self.top(deep.flatten(1)).squeeze(1) + wide.sum(1)


def dynamic(dim, exchange=None):
    """Tables for all features."""
    return EmbeddingCollection({name: DynamicEmbeddingBag(
        1 + dim, mode="sum", optimizer=Adam(lr=0.03), exchange=exchange) for name in FEATURES})


def train_day(call, optimizers, ids, clicks, size):
    """Score and train a day, batch by batch; return the scores."""
    scores = []
    for batch, clicked in batches(ids, clicks, size):
        logits = call(batch)
        scores.append(logits.detach())
        binary_cross_entropy_with_logits(logits, clicked).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat(scores)


def rank_main(rank, ranks, port, days, given):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group(given.backend, rank=rank, world_size=ranks)
    torch.manual_seed(0)
    folder = Path(given.folder)
    model = WideDeep(dynamic(8, Exchange()), 8)
    ddp = DistributedDataParallel(model)
    dense, sparse = torch.optim.Adam(model.top.parameters(), lr=3e-3), TableOptimizer(model)
    if days.start:
        load(model, folder)
        kept = torch.load(folder / "dense.pt")
        model.top.load_state_dict(kept["model"])
        dense.load_state_dict(kept["optimizer"])
    stream = Clicks(given.seed, per_day=given.clicks)
    for day in range(days.stop):
        ids, clicks = stream.day()
        if day < days.start:
            continue  # days that were trained on before
        own = slice(rank, given.clicks // ranks * ranks, ranks)
        for module in tables_of(model).values():
            module.table.clock = day
        mine = {name: part[own] for name, part in ids.items()}
        scores = train_day(ddp, (dense, sparse), mine, clicks[own], given.batch // ranks)
        gone = sum(module.evict(idle=0) for module in tables_of(model).values())
        save(model, folder, delta=day > 0)
        report(rank, ranks, day, model, (scores, clicks[own]), gone)
        if rank == 0:
            torch.save({"model": model.top.state_dict(), "optimizer": dense.state_dict()},
                       folder / "dense.pt")
    dist.barrier()
    dist.destroy_process_group()


def report(rank, ranks, day, model, scored, gone):
    """Print a line on a day, from rank 0."""
    counts = torch.tensor([sum(module.table.rows for module in tables_of(model).values()), gone])
    dist.all_reduce(counts)
    if rank == 0:
        print(f"day {day + 1}, {ranks} ranks: AUC {auc(*scored):.4f}, {counts[0]} rows, "
              f"{counts[1]} evicted, {'delta' if day else 'full'} checkpoint", flush=True)


def two_numbers(text):
    if not re.fullmatch("[1-9][0-9]*,[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: two numbers from 1 on, as in 2,3")
    return tuple(map(int, text.split(",")))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, value, what in (("clicks", 40_000, "of a day"), ("batch", 480, "over all ranks"),
                              ("seed", 0, "of the stream")):
        parser.add_argument(f"--{name}", type=int, default=value, help=what)
    parser.add_argument("--ranks", default=(2, 3), type=two_numbers, metavar="N,M",
                        help="ranks of the first three days, and of the others")
    parser.add_argument("--backend", default="lightcc", choices=["lightcc", "gloo"])
    parser.add_argument("--folder", help="where checkpoints stay; else they go with the run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        given.folder = given.folder or own
        for ranks, days in zip(given.ranks, (range(FIRST_DAYS), range(FIRST_DAYS, DAYS)),
                               strict=True):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            torch.multiprocessing.spawn(rank_main, (ranks, port, days, given), nprocs=ranks)


if __name__ == "__main__":
    main()
