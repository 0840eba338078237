"""A rank of a small job of DDP over gloo that records a step.

    pytorch_job.py FOLDER [calls], under torchrun's variables

With ``calls``, a step ends with calls that gloo's spans show otherwise than c10d does.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

from tests.support.leave import leave

rank, folder = int(os.environ["RANK"]), sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
model = torch.nn.parallel.DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
observer = ExecutionTraceObserver().register_callback(f"{folder}/et.{rank}.json")
with profile(activities=[ProfilerActivity.CPU], record_shapes=True,
             schedule=schedule(wait=0, warmup=2, active=1), execution_trace_observer=observer,
             on_trace_ready=lambda done: done.export_chrome_trace(
                 f"{folder}/kineto.{rank}.json")) as profiler:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).sum().backward()
        optimizer.step()
        if "calls" in sys.argv[2:]:
            dist.reduce_scatter_tensor(torch.zeros(4), torch.ones(8))
            dist.barrier()
            (dist.send if rank == 0 else dist.recv)(torch.zeros(3), 1 - rank, tag=5)
        profiler.step()
observer.unregister_callback()
dist.destroy_process_group()
leave()
