"""A rank of test_ranks.py: trains under DDP over gloo, with trouble at rank 1 alone.

Under torchrun's variables `rank.py FILE` prints its decisions, and a sum over its parameters, as
JSON.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harp.ttf.amp import Controller, Policy
from tests.support.leave import leave

OVERFLOWS, OFFSETS = (20, 24, 28), (44,)


class Net(nn.Module):
    """A square in half precision, which overflows from 256 on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)).square().mean()


def main(file: str, rank: int, ranks: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    controller = Controller(model, torch.optim.SGD(model.parameters(), lr=1e-3),
                            policy=Policy(hold=6), clip_norm=1.0)
    random = torch.Generator().manual_seed(rank)
    reports = []
    for step in range(60):
        x = torch.randn(16, 8, generator=random)
        if rank == 1 and step in OVERFLOWS:
            x = x * 1e5
        rounds = rank == 1 and step in OFFSETS

        def loss(x=x, rounds=rounds) -> torch.Tensor:
            value = model(x)
            wrong = rounds and torch.is_autocast_enabled("cpu")
            return 1000 - value if wrong else value

        reports.append(controller.step(loss))
    print(json.dumps({
        "decisions": [(report.half, report.applied, report.again) for report in reports],
        "losses": [report.loss for report in reports],
        "switches": controller.switches, "pinned": controller.pinned,
        "parameters": [float(value.detach().double().sum()) for value in model.parameters()]}))
    dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    main(sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
