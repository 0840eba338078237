"""One rank of test_ranks.py: trains a model with BatchNorm, saves it in FOLDER and loads it again.

Usage: buffers_rank.py FOLDER. Prints a JSON of the running means before and after.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

import harp.lightcc.torch  # noqa: F401  (it registers the backend)
from tests.harp.angelptm.models import config, engine_of, seeded
from tests.support.leave import leave


def main():
    """Train on data of this rank's own, save, and load."""
    torch.set_num_threads(1)
    dist.init_process_group("lightcc", timeout=timedelta(seconds=60))
    model = seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), dist.get_rank())
    with engine_of(model, config()) as engine:
        for _ in range(3):
            engine.backward(engine(torch.randn(16, 8) + dist.get_rank()).square().mean())
            engine.step()
        before = model[1].running_mean.tolist()
        engine.save_checkpoint(sys.argv[1])
        engine.load_checkpoint(sys.argv[1])
        print(json.dumps([before, model[1].running_mean.tolist()]))
    dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    main()
