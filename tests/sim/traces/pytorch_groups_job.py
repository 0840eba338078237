"""A rank of a job of four over gloo that records collectives of two groups.

    pytorch_groups_job.py FOLDER [c10d | hsdp | message], under torchrun's variables

They are functional ones. With ``c10d``, the second is a plain one, which does not name its group;
with ``hsdp`` a step of FSDP in pairs calls them, with ``message`` a pair's ranks send.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C._distributed_c10d import _dump_fr_trace_json
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

from tests.support.leave import leave


def hsdp() -> torch.nn.Module:
    """A layer whose parameters pairs of neighbours share, and across whose pairs they are equal."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return fully_shard(torch.nn.Linear(64, 16, bias=False), mesh=mesh)


rank, folder = int(os.environ["RANK"]), sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
mode = sys.argv[2] if sys.argv[2:] else ""
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
model = hsdp() if mode == "hsdp" else None
observer = ExecutionTraceObserver().register_callback(f"{folder}/et.{rank}.json")
with profile(activities=[ProfilerActivity.CPU], record_shapes=True,
             schedule=schedule(wait=0, warmup=1, active=1), execution_trace_observer=observer,
             on_trace_ready=lambda done: done.export_chrome_trace(
                 f"{folder}/kineto.{rank}.json")) as profiler:
    for _ in range(2):
        if model is not None:
            model(torch.ones(4, 64)).sum().backward()
            profiler.step()
            continue
        functional.all_reduce(torch.ones(1024), "sum", dist.group.WORLD).sum()
        if mode == "c10d":
            dist.all_reduce(torch.ones(2048), group=pairs[rank // 2])
            dist.reduce_scatter_tensor(torch.zeros(4), torch.ones(8), group=pairs[rank // 2])
            dist.barrier()
        elif mode == "message":
            (dist.recv if rank % 2 else dist.send)(torch.ones(8), rank ^ 1)
        else:
            functional.all_reduce(torch.ones(2048), "sum", pairs[rank // 2]).sum()
            functional.all_gather_tensor(torch.ones(512), 0, pairs[rank // 2]).sum()
        profiler.step()
observer.unregister_callback()
Path(f"{folder}/flight.{rank}.json").write_bytes(_dump_fr_trace_json())
dist.destroy_process_group()
leave()
