"""A rank of a job of four over gloo that records functional collectives of two groups.

    pytorch_groups_job.py FOLDER [c10d], under torchrun's variables

With ``c10d``, the second collective is a plain one, which does not name its group.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

from tests.support.leave import leave

rank, folder = int(os.environ["RANK"]), sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
observer = ExecutionTraceObserver().register_callback(f"{folder}/et.{rank}.json")
with profile(activities=[ProfilerActivity.CPU], record_shapes=True,
             schedule=schedule(wait=0, warmup=1, active=1), execution_trace_observer=observer,
             on_trace_ready=lambda done: done.export_chrome_trace(
                 f"{folder}/kineto.{rank}.json")) as profiler:
    for _ in range(2):
        functional.all_reduce(torch.ones(1024), "sum", dist.group.WORLD).sum()
        if "c10d" in sys.argv[2:]:
            dist.all_reduce(torch.ones(2048), group=pairs[rank // 2])
        else:
            functional.all_reduce(torch.ones(2048), "sum", pairs[rank // 2]).sum()
            functional.all_gather_tensor(torch.ones(512), 0, pairs[rank // 2]).sum()
        profiler.step()
observer.unregister_callback()
dist.destroy_process_group()
leave()
