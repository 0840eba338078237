"""A rank of test_exchange.py: trains a divided table, saves it, or compares it with one alone.

usage: exchange_rank.py BACKEND FOLDER DO, under torchrun's variables
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harp.angelptm.cache import StoreError
from harp.tensor_files import CheckpointError
from harp.ttf.embedding import (
    Adam,
    DynamicEmbedding,
    DynamicEmbeddingBag,
    EmbeddingCollection,
    TableOptimizer,
)
from harp.ttf.embedding.checkpoint import load, save
from harp.ttf.embedding.exchange import Exchange
from harp.ttf.embedding.operators import _reader
from harp.ttf.embedding.table import Table
from tests.harp.ttf.embedding.test_checkpoint import contents
from tests.support.leave import leave

BATCH, STEPS = 24, 6
"""BATCH is divisible by all numbers of ranks."""


def made(exchange=None):
    return EmbeddingCollection({
        "a": DynamicEmbeddingBag(4, mode="mean", optimizer=Adam(lr=0.1), bound=0.5, padding_idx=3,
                                 exchange=exchange),
        "b": DynamicEmbeddingBag(3, mode="sum", optimizer=Adam(lr=0.1), bound=0.5,
                                 exchange=exchange)})


class Clicks(nn.Module):
    """Tables under a dense layer."""

    def __init__(self, exchange=None):
        super().__init__()
        self.tables, self.top = made(exchange), nn.Linear(7, 1)
        nn.init.constant_(self.top.weight, 0.5)
        nn.init.zeros_(self.top.bias)

    def forward(self, ids):
        return self.top(torch.cat(list(self.tables(ids).values()), 1)).cos().mean()


def train_all(model, rank=0, ranks=1):
    """Train tables and the dense layer, by DDP where there are several ranks."""
    call = DistributedDataParallel(model) if ranks > 1 else model
    optimizers = TableOptimizer(call), torch.optim.SGD(model.top.parameters(), lr=0.1)
    for step in range(STEPS):
        call(batch(step, rank, ranks)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def batch(step, rank, ranks):
    """A rank's part of a batch: ids in two dimensions, and ids with offsets and weights."""
    generator = torch.Generator().manual_seed(step)
    square = torch.randint(-20, 20, (BATCH, 3), generator=generator)
    flat = torch.randint(-20, 20, (BATCH * 2,), generator=generator) * 2 ** 40
    weights = torch.rand(BATCH * 2, generator=generator)
    n = BATCH // ranks
    own, pairs = slice(rank * n, (rank + 1) * n), slice(2 * rank * n, 2 * (rank + 1) * n)
    return {"a": square[own], "b": (flat[pairs], torch.arange(0, 2 * n, 2), weights[pairs])}


def train(model, steps, rank=0, ranks=1, *, prefetch=False):
    optimizer = TableOptimizer(model)
    for step in steps:
        rows = model(batch(step, rank, ranks))
        if prefetch and step + 1 < steps.stop:
            model.prefetch(batch(step + 1, rank, ranks))
        loss = sum(part.cos().sum() for part in rows.values()) / len(rows["a"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def not_finite(model, rank, ranks):
    """One rank's gradient is NaN: all ranks leave the step out."""
    optimizer = TableOptimizer(model)
    rows = model(batch(0, rank, ranks))
    before = {name: part.detach().clone() for name, part in rows.items()}
    (rows["a"].sum() * (float("nan") if rank == ranks - 1 else 1.0)).backward()
    with pytest.raises(FloatingPointError, match="is not finite"):
        optimizer.step()
    after = model(batch(0, rank, ranks))
    assert all(torch.equal(after[name], before[name]) for name in before)


def another_prefetch(model, rank, ranks):
    """A look-up of other ids than were prefetched is refused, on all ranks alike."""
    model.prefetch(batch(0, rank, ranks))
    with pytest.raises(ValueError, match="prefetch had other ids than the look-up behind it"):
        model(batch(1, rank, ranks))


def reads_ahead(rank):
    """Rows of ids that are on their way come from disk before the look-up."""
    module = DynamicEmbedding(8, exchange=Exchange(), memory_bytes=200 * 8 * 4, shards=1)
    optimizer, table = TableOptimizer(module), module.table
    for ids in torch.arange(rank, 4000).split(100):
        module(ids).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert table.rows > 4 * table.resident
    ids, before = torch.arange(100), table.pages_read
    module.prefetch(ids)
    _reader().submit(lambda: None).result()
    ahead = table.pages_read
    module(ids)
    assert ahead > before
    assert table.pages_read == ahead


def refuses(model, folder, rank, ranks):
    """One rank cannot load: no rank does, and each names it; then all can."""
    train(model, range(1), rank, ranks)
    before = contents(model)
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(Table, "write", cannot)
        with pytest.raises((StoreError, CheckpointError),
                           match="^its disk is gone" if rank == 1 else "^rank 1: its disk is gone"):
            load(model, folder)
    assert contents(model) == before
    load(model, folder)
    assert contents(model) != before


def cannot(*given):
    raise StoreError("its disk is gone")


def main():
    backend, folder, do = sys.argv[1:]
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = Path(folder)
    torch.set_num_threads(1)
    if backend == "lightcc":
        import harp.lightcc.torch.backend  # noqa: F401  # registers the name
    dist.init_process_group(backend, init_method=f"file://{folder}/meet-{do}", rank=rank,
                            world_size=ranks)
    model = made(Exchange())
    if do == "read ahead":
        reads_ahead(rank)
    elif do == "ddp":
        model = Clicks(Exchange())
        train_all(model, rank, ranks)
        save(model, folder / "saved")
        torch.save(model.top.state_dict(), folder / f"top-{rank}")
    elif do == "refuse":
        refuses(model, folder / "saved", rank, ranks)
    elif do == "save":
        train(model, range(STEPS // 2), rank, ranks, prefetch=True)
        save(model, folder / "saved")
    else:
        load(model, folder / "saved")
        copy = made(model.bags["a"].exchange)
        load(copy, folder / "saved")
        save(copy, folder / "copied")
        train(model, range(STEPS // 2, STEPS), rank, ranks)
        save(model, folder / "saved", delta=True)
        not_finite(model, rank, ranks)
        another_prefetch(model, rank, ranks)
    dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    main()
