"""TTF's dynamic tables beside torch's dense ones, and tables of TFRA and torchrec (table_peers.py).

Ids are Zipf's with exponent 1.05, over 10 M rows of 32 floats; both sides have all rows from the
start. Tables need up to 9 GB. Needs root.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from bench.arms import ROOT, Sample
from bench.comparison import ArmRow
from bench.rows import by_id
from bench.subject import BenchError
from bench.ttf.table_peers import peer
from harp.ttf.embedding import (
    SGD,
    Adam,
    DynamicEmbedding,
    DynamicEmbeddingBag,
    EmbeddingCollection,
    TableOptimizer,
)
from harp.ttf.embedding.table import HEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.arms import Bench
    from bench.comparison import Arms

ROWS, DIM, ZIPF = 10_000_000, 32, 1.05
BAGS, IDS = 4096, 16
"""Of a batch: bags, and ids of a bag."""
FEATURES, MANY_BAGS, MANY_ROWS = 100, 256, 10_000
GROWN = 2_000_000
"""Rows of the row memory."""
TFRA_ROWS, TORCHREC_ROWS = 1_000_000, 200_000


def zipf_ids(n: int, rows: int, seed: int) -> torch.Tensor:
    """Draw ids below ``rows``, the first most often: by inversion of the integral of x^-ZIPF."""
    u = np.random.default_rng(seed).random(n)
    low = 1 - ZIPF
    x = ((rows ** low - 1) * u + 1) ** (1 / low)
    # Frequent ids lie anywhere, as they do where ids are hashes or come in any order.
    return torch.from_numpy((x.astype(np.int64) - 1) * 7_919 % rows)


def far(ids: torch.Tensor) -> torch.Tensor:
    """Give the dynamic table's ids for dense ones: they use all 64 bits."""
    return ids * 0x1E3779B97F4A7C15


def filled(module: DynamicEmbedding, rows: int) -> None:
    """Insert ``rows`` rows at once."""
    values = np.full((1 << 16, module.table.floats), 0.01, dtype=np.float32)
    heads = np.zeros(1 << 16, dtype=HEAD)
    for at in range(0, rows, len(heads)):
        n = min(len(heads), rows - at)
        heads["key"][:n] = far(torch.arange(at, at + n)).numpy()
        module.table.write(heads[:n], values[:n])


def rate(step: Callable[[Any], object], batches: list[Any], units: float,
         ) -> Callable[[float], Sample]:
    """Measure how many units a second a step makes, over the batches in turn."""
    for batch in batches[:2]:
        step(batch)
    going = cycle(batches)

    def take(seconds: float) -> Sample:
        begun, times = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            step(next(going))
            times += 1
        return Sample(units * times / (time.perf_counter() - begun))
    return take


def batches_of_ids(n: int = 20) -> list[torch.Tensor]:
    return [zipf_ids(BAGS * IDS, ROWS, seed).reshape(BAGS, IDS) for seed in range(n)]


@contextmanager
def look_ups(bench: Bench) -> Iterator[Arms]:
    """Look up bags, with no gradient."""
    bag, dense = DynamicEmbeddingBag(DIM, mode="sum"), nn.EmbeddingBag(ROWS, DIM, mode="sum")
    filled(bag, ROWS)
    ids = batches_of_ids()
    with torch.no_grad():
        ours = rate(bag, [far(batch) for batch in ids], BAGS * IDS * 1e-6)
        theirs = rate(dense, ids, BAGS * IDS * 1e-6)
        yield {"dynamic": lambda: ours(bench.seconds),
               "nn.EmbeddingBag": lambda: theirs(bench.seconds)}


def training(module: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
    """Return a step: forward, backward, the optimizer."""
    def step(batch: Any) -> None:
        rows = module(batch)
        rows.backward(torch.ones_like(rows))
        optimizer.step()
        optimizer.zero_grad()
    return step


@contextmanager
def steps(bench: Bench) -> Iterator[Arms]:
    """Forward, backward and Adam."""
    bag = DynamicEmbeddingBag(DIM, mode="sum", optimizer=Adam())
    filled(bag, ROWS)
    dense = nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
    ids = batches_of_ids()
    ours = rate(training(bag, TableOptimizer(bag)), [far(batch) for batch in ids], 1)
    theirs = rate(training(dense, torch.optim.SparseAdam(list(dense.parameters()))), ids, 1)
    yield {"dynamic": lambda: ours(bench.seconds),
           "SparseAdam": lambda: theirs(bench.seconds)}


@contextmanager
def features(bench: Bench) -> Iterator[Arms]:
    """Look up many features, and train them."""
    names = [f"f{i}" for i in range(FEATURES)]
    ours = EmbeddingCollection({name: DynamicEmbeddingBag(16, mode="sum", optimizer=SGD())
                                for name in names})
    for bag in ours.bags.values():
        filled(bag, MANY_ROWS)
    theirs = nn.ModuleList(nn.EmbeddingBag(MANY_ROWS, 16, mode="sum") for _ in names)
    ids = [{name: zipf_ids(MANY_BAGS * 2, MANY_ROWS, 1000 * seed + i).reshape(MANY_BAGS, 2)
            for i, name in enumerate(names)} for seed in range(5)]

    def one_by_one(batch: dict[str, torch.Tensor]) -> None:
        for bag, given in zip(theirs, batch.values(), strict=True):
            bag(given)

    with torch.no_grad():
        collection = rate(ours, [{name: far(given) for name, given in batch.items()}
                                 for batch in ids], 1)
        modules = rate(one_by_one, ids, 1)
        yield {"collection": lambda: collection(bench.seconds),
               "100 nn.EmbeddingBag": lambda: modules(bench.seconds)}


def most_memory() -> int:
    """Give the most memory that this process had: VmHWM of proc_pid_status(5)."""
    text = Path("/proc/self/status").read_text("ascii")
    return int(text.split("VmHWM:")[1].split()[0]) * 1024


def grow() -> None:
    """Print the memory of a row, growth included: what a process had at most, less its start."""
    module = DynamicEmbedding(DIM, optimizer=Adam())
    filled(module, 1)
    before = most_memory()
    filled(module, GROWN)
    print((most_memory() - before) / GROWN)


@contextmanager
def memory(bench: Bench) -> Iterator[Arms]:
    """Memory of a row in a process of its own."""
    del bench

    def grown() -> Sample:
        command = [sys.executable, "-c", "from bench.ttf.embedding_rows import grow; grow()"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False,
                              timeout=600)
        if done.returncode:
            raise BenchError(done.stderr.strip().splitlines()[-1])
        return Sample(float(done.stdout))

    yield {"process": grown, "key, row, state": lambda: Sample(8.0 + 4 * 3 * DIM)}


class WideDeep(nn.Module):
    """Wide & Deep, arXiv 1606.07792: crossed ids to a sum, rows of each feature to an MLP."""

    def __init__(self, wide: nn.Module, deep: nn.Module, dim: int) -> None:
        super().__init__()
        self.wide, self.deep = wide, deep
        layers: list[nn.Module] = []
        for width in (256, 128, 64):
            layers += [nn.Linear(dim, width), nn.ReLU()]
            dim = width
        self.top = nn.Sequential(*layers, nn.Linear(dim, 1))

    def forward(self, ids: dict[str, torch.Tensor]) -> torch.Tensor:
        """Give a logit for each example."""
        rows = torch.cat(list(self.deep(ids).values()), dim=1)
        wide = torch.stack(list(self.wide(ids).values())).sum(0)
        logit: torch.Tensor = self.top(rows) + wide
        return logit.squeeze(1)


class Bags(nn.ModuleDict):
    """Dense bags by feature."""

    def forward(self, ids: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Give the rows of each feature."""
        return {name: bag(ids[name]) for name, bag in self.items()}


def wide_deep_step(model: WideDeep, sparse: list[torch.optim.Optimizer],
                   call: Callable[..., Any]) -> Callable[[Any], None]:
    """Return a training step."""
    dense = torch.optim.Adam(model.top.parameters())

    def step(batch: tuple[dict[str, torch.Tensor], torch.Tensor]) -> None:
        ids, clicks = batch
        nn.functional.binary_cross_entropy_with_logits(call(ids), clicks).backward()
        for optimizer in (dense, *sparse):
            optimizer.step()
            optimizer.zero_grad()
    return step


WIDE_FEATURES, WIDE_ROWS, WIDE_BATCH = 26, 100_000, 2048
"""The categorical features of Criteo's click logs."""


@contextmanager
def wide_deep(bench: Bench) -> Iterator[Arms]:
    """Train Wide & Deep on ids like Criteo's."""
    names = [f"f{i}" for i in range(WIDE_FEATURES)]
    ids = [{name: zipf_ids(WIDE_BATCH, WIDE_ROWS, 1000 * seed + i).reshape(-1, 1)
            for i, name in enumerate(names)} for seed in range(5)]
    clicks = (torch.rand(WIDE_BATCH) < 0.3).float()
    wide, deep = (EmbeddingCollection({
        name: DynamicEmbeddingBag(dim, mode="sum", optimizer=Adam()) for name in names})
        for dim in (1, 16))
    ours = WideDeep(wide, deep, 16 * WIDE_FEATURES)
    arms = {"dynamic": rate(wide_deep_step(ours, [TableOptimizer(ours)], ours),
                            [({name: far(given) for name, given in batch.items()}, clicks)
                             for batch in ids], 1)}
    for name, wrap in (("eager", lambda model: model), ("torch.compile", torch.compile)):
        flat, rich = (Bags({name: nn.EmbeddingBag(WIDE_ROWS, dim, mode="sum", sparse=True)
                            for name in names}) for dim in (1, 16))
        model = WideDeep(flat, rich, 16 * WIDE_FEATURES)
        rows = [*model.wide.parameters(), *model.deep.parameters()]
        arms[name] = rate(wide_deep_step(model, [torch.optim.SparseAdam(rows)], wrap(model)),
                          [(batch, clicks) for batch in ids], 1)
    yield {name: partial(take, bench.seconds) for name, take in arms.items()}


@contextmanager
def torchrec(bench: Bench) -> Iterator[Arms]:
    """TorchRec's managed collision, which remaps ids into a table of fixed size."""
    ids = [zipf_ids(BAGS * IDS, TORCHREC_ROWS, seed) for seed in range(10)]
    ours = DynamicEmbedding(DIM)
    filled(ours, TORCHREC_ROWS)
    with (torch.no_grad(),
          peer("torchrec", torch.stack(ids).numpy(), TORCHREC_ROWS, DIM) as ask):
        own = rate(ours, [far(batch) for batch in ids], BAGS * IDS * 1e-6)
        yield {"dynamic": lambda: own(bench.seconds),
               "managed collision": lambda: Sample(1e-6 * ask("find", bench.seconds))}


def inserts(seconds: float) -> Sample:
    """Insert half a million rows into an empty table, batch by batch, again and again."""
    n, at_once, spent, times = 1 << 19, BAGS * IDS, 0.0, 0
    heads, values = np.zeros(n, dtype=HEAD), np.full((at_once, DIM), 0.01, dtype=np.float32)
    heads["key"] = far(torch.arange(n)).numpy()
    while spent < seconds:
        table = DynamicEmbedding(DIM).table
        begun = time.perf_counter()
        for at in range(0, n, at_once):
            table.write(heads[at:at + at_once], values)
        spent, times = spent + time.perf_counter() - begun, times + 1
    return Sample(1e-6 * n * times / spent)


@contextmanager
def tfra(bench: Bench) -> Iterator[Arms]:
    """The dynamic embedding variable of TensorFlow Recommenders Addons."""
    ids = [zipf_ids(BAGS * IDS, TFRA_ROWS, seed) for seed in range(10)]
    ours = DynamicEmbedding(DIM)
    filled(ours, TFRA_ROWS)
    with torch.no_grad(), peer("tfra", torch.stack(ids).numpy(), TFRA_ROWS, DIM) as ask:
        own = rate(ours, [far(batch) for batch in ids], BAGS * IDS * 1e-6)
        yield {"find": lambda: own(bench.seconds), "insert": lambda: inserts(bench.seconds),
               "TFRA find": lambda: Sample(1e-6 * ask("find", bench.seconds)),
               "TFRA insert": lambda: Sample(1e-6 * ask("insert", bench.seconds))}


ROWS_BY_ID = by_id((
    ArmRow("lookup", "10 M rows of 32, Zipf 1.05, bags of 16", look_ups, "dynamic",
           unit="M ids/s", against=("nn.EmbeddingBag",), target=0.6),
    ArmRow("step", "forward, backward, Adam; the same ids", steps, "dynamic", unit="steps/s",
           against=("SparseAdam",), target=2.0),
    ArmRow("many", "100 features looked up, 256 bags of 2", features, "collection",
           unit="batches/s", against=("100 nn.EmbeddingBag",), target=3.0),
    ArmRow("memory", "bytes of a row with Adam, growth included", memory, "process", unit="B",
           against=("key, row, state",), target=1.3, lower=True),
    ArmRow("wide-deep", "training step of Wide & Deep, 26 features", wide_deep, "dynamic",
           unit="steps/s", against=("eager", "torch.compile"), target=1.43),
    ArmRow("tfra-find", "look up, 1 M rows of 32, Zipf 1.05", tfra, "find", unit="M ids/s",
           against=("TFRA find",), target=2.0),
    ArmRow("tfra-insert", "insert 524,288 rows of 32", tfra, "insert", unit="M ids/s",
           against=("TFRA insert",), target=2.0),
    ArmRow("torchrec", "remap and look up, 200,000 rows", torchrec, "dynamic", unit="M ids/s",
           against=("managed collision",), target=2.0),
))
