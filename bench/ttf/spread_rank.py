"""A rank that trains Wide & Deep on tables that are spread over all: commands on stdin, in JSON.

``{"do": "train", "steps": n, "alone": false}`` makes n steps; the answer has their seconds. Alone,
a rank does all that it does otherwise, except that its tables and averages are its own: ids, rows
and gradients go to itself. ``{"do": "count"}`` gives the mean of a batch's distinct ids, and the
parameters that are averaged. Variables are torchrun's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import cycle, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.lightcc.torch_rank import leave_alone
from bench.ttf.embedding_rows import far, zipf_ids
from harp.ttf.embedding import (
    Adam,
    DynamicEmbeddingBag,
    EmbeddingCollection,
    Exchange,
    TableOptimizer,
)

FEATURES, DIM, ROWS, BATCH, BATCHES = 26, 16, 100_000, 2048, 8
"""The categorical features of Criteo's click logs, as in row wide-deep."""
WIDTHS = (256, 128, 64, 1)


class WideDeep(nn.Module):
    """Rows that begin with the weight of the wide part: one look-up brings both."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self.tables = EmbeddingCollection({f"f{n}": DynamicEmbeddingBag(
            1 + DIM, mode="sum", optimizer=Adam(), exchange=exchange) for n in range(FEATURES)})
        layers: list[nn.Module] = []
        width = FEATURES * DIM
        for wider in WIDTHS:
            layers += [nn.Linear(width, wider), nn.ReLU()]
            width = wider
        self.top = nn.Sequential(*layers[:-1])

    def forward(self, ids: dict[str, torch.Tensor]) -> torch.Tensor:
        """Give a logit for each example."""
        rows = torch.stack(list(self.tables(ids).values()), dim=1)
        logit: torch.Tensor = self.top(rows[:, :, 1:].flatten(1)).squeeze(1)
        return logit + rows[:, :, 0].sum(1)


class Rank:
    """The commands of a rank."""

    def __init__(self) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        own = [dist.new_group([each]) for each in range(ranks)][rank]
        self._ids = [{f"f{n}": zipf_ids(BATCH, ROWS, (rank * BATCHES + batch) * FEATURES + n)
                      .reshape(-1, 1) for n in range(FEATURES)} for batch in range(BATCHES)]
        self._clicks = (torch.arange(BATCH) % 3 == 0).float()
        self._steps = {True: self._made(own), False: self._made(None)}

    def _made(self, group: Any) -> Any:
        torch.manual_seed(0)
        model = WideDeep(Exchange(group))
        call = DistributedDataParallel(model)
        if group is not None:
            call.register_comm_hook(None, leave_alone)
        optimizers = torch.optim.Adam(model.top.parameters()), TableOptimizer(model)
        batches = cycle({name: far(ids) for name, ids in batch.items()} for batch in self._ids)

        def steps(n: int) -> None:
            for ids in islice(batches, n):
                nn.functional.binary_cross_entropy_with_logits(call(ids), self._clicks).backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        steps(BATCHES)  # all rows are there from now on
        return steps

    def train(self, *, steps: int, alone: bool) -> dict[str, float]:
        """Make steps."""
        dist.barrier()
        begun = time.perf_counter()
        self._steps[alone](steps)
        return {"seconds": time.perf_counter() - begun, "steps": steps}

    def count(self) -> dict[str, float]:
        """Count what a step sends."""
        distinct = sum(len(torch.unique(ids)) for batch in self._ids for ids in batch.values())
        width, averaged = FEATURES * DIM, 0
        for wider in WIDTHS:
            averaged, width = averaged + width * wider + wider, wider
        return {"distinct": round(distinct / BATCHES), "row": 1 + DIM, "averaged": averaged}


def main() -> None:
    """Answer until stdin ends."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = Rank()
    print("ready", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(rank, command.pop("do"))(**command)), flush=True)
    sys.stdout.flush()
    os._exit(0)  # the groups' other ranks end just so


if __name__ == "__main__":
    main()
