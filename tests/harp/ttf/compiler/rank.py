"""A rank that compiles a model and its optimizer, by a backend, with caches of its own in a folder.

The program prints what the rank compiled, what it found in torch's caches, and its decisions.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters

import harp.ttf
from tests.support.leave import leave

folder, backend = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/cache-{rank}"
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
model = harp.ttf.compile(net, learn=3 + rank % 2, after_s=0, backend=backend)
optimizer = torch.optim.AdamW(net.parameters())
step = harp.ttf.compile(optimizer, after_s=0, backend=backend)
for size in (4, 6, 8, 4, 5):
    model(torch.randn(size, 8)).sum().backward()
    step()
model.wait()
if rank == 0:
    step.wait()
    step()  # compiles, if that pays, and lets the other rank know
step.wait()
right = net(torch.ones(7, 8))
assert torch.allclose(model(torch.ones(7, 8)), right, atol=1e-5)
dist.barrier()
print(json.dumps({"compiled": counters["inductor"]["fxgraph_cache_miss"],
                  "found": counters["inductor"]["fxgraph_cache_hit"],
                  "decisions": model.decisions() + step.decisions()}))
leave()
