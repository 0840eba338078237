"""One rank of test_failures.py: every caller that torch has meets a failed group.

Usage: failure_rank.py WAY CALLER... Each caller has a group of its own and makes two good rounds on
it. Then all ranks but the last begin another round on each group, and amid it the last one fails by
WAY. The survivors print a JSON object of caller to sentence, and so show that they live.
"""

import atexit
import contextlib
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from harp.lightcc.hook import GradientState, average_gradients
from harp.lightcc.outer import DiLoCo, Islands, SparseLoCo
from harp.lightcc.torch.few_bits import BitsState, average_in_few_bits

TIMEOUT_S = 15
PATIENCE = timedelta(seconds=120)
WIDTH = 16


def mesh_of(group):
    return DeviceMesh.from_group(group, "cpu", mesh_dim_names=("rank",))


def plain_call(group):
    return lambda: dist.all_reduce(torch.ones(8), group=group)


def barrier(group):
    return lambda: dist.barrier(group)


def objects(group):
    return lambda: dist.all_gather_object([None] * group.size(), group.rank(), group)


def messages(group):
    """The last rank sends, and no collective is under way."""
    last = group.size() - 1

    def call():
        if group.rank() == last:
            works = [dist.isend(torch.ones(8), group=group, group_dst=peer) for peer in range(last)]
        else:
            works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.zeros(8), group=group,
                                                       group_peer=last)])
        for work in works:
            work.wait()
    return call


def async_work(group):
    return lambda: dist.all_reduce(torch.ones(8), group=group, async_op=True).wait()


def future_wait(group):
    return lambda: dist.all_reduce(torch.ones(8), group=group, async_op=True).get_future().wait()


def future_callback(group):
    def call():
        work = dist.all_reduce(torch.ones(8), group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0]).wait()
    return call


def collected_futures(group):
    def call():
        works = [dist.all_reduce(torch.ones(8), group=group, async_op=True) for _ in range(2)]
        values = torch.futures.wait_all([work.get_future() for work in works])
        return [value[0] for value in values]
    return call


def ddp(group, hook=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=0.0001)
    if hook:
        hook(model)
    return lambda: model(torch.ones(2, WIDTH)).sum().backward()


def ddp_joined(group):
    """Where inputs are uneven: DDP asks in each step how many ranks have one."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(WIDTH, 1), process_group=group)

    def call():
        with model.join():
            model(torch.ones(2, WIDTH)).sum().backward()
    return call


def ddp_compiled(group):
    torch.manual_seed(0)
    model = torch.compile(DistributedDataParallel(nn.Linear(WIDTH, 1), process_group=group),
                          backend="aot_eager")
    return lambda: model(torch.ones(2, WIDTH)).sum().backward()


def ddp_with_powersgd(group):
    """The hook's callbacks call further collectives, whose callbacks do the same."""
    state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2)
    return ddp(group, lambda model: model.register_comm_hook(state, powerSGD_hook.powerSGD_hook))


def ddp_with_our_hook(group):
    return ddp(group, lambda model: model.register_comm_hook(GradientState(group),
                                                             average_gradients))


def ddp_with_a_hook_of_its_own(group):
    def average(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0] / group.size())
    return ddp(group, lambda model: model.register_comm_hook(None, average))


def ddp_in_few_bits(group):
    return ddp(group, lambda model: model.register_comm_hook(BitsState(8, group),
                                                             average_in_few_bits))


def outer_step(make, group):
    net = nn.Linear(WIDTH, 1)
    outer = make(net, torch.optim.SGD(net.parameters(), 0.1), 1, Islands(group))

    def call():
        net(torch.ones(2, WIDTH)).sum().backward()
        outer.step()
    return call


def diloco(group):
    return outer_step(DiLoCo, group)


def diloco_in_few_bits(group):
    return outer_step(partial(DiLoCo, bits=8), group)


def diloco_around_a_ring(group):
    return outer_step(partial(DiLoCo, bits=8, exchange="ring"), group)


def sparseloco(group):
    return outer_step(SparseLoCo, group)


def fsdp2(group):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    fully_shard(model, mesh=mesh_of(group))
    return lambda: model(torch.ones(2, WIDTH)).sum().backward()


def fsdp1(group):
    torch.manual_seed(0)
    model = FullyShardedDataParallel(nn.Linear(WIDTH, 1), group, device_id=torch.device("cpu"))
    return lambda: model(torch.ones(2, WIDTH)).sum().backward()


def zero_optimizer(group):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, process_group=group,
                                        lr=0.1)

    def call():
        net(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
    return call


def checkpoint(group):
    model = nn.Linear(WIDTH, 1)
    return lambda: dcp.save(model.state_dict(), process_group=group,
                            checkpoint_id=f"{os.environ['FOLDER']}/{time.monotonic_ns()}")


def tensor_parallel(group):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 12), nn.Linear(12, 1))
    parallelize_module(model, mesh_of(group), {"0": ColwiseParallel(), "1": RowwiseParallel()})
    return lambda: model(torch.ones(2, WIDTH)).sum().backward()


def dtensor(group):
    mesh = mesh_of(group)
    return lambda: DTensor.from_local(torch.ones(4), mesh, [Partial()]).redistribute(
        mesh, [Replicate()]).to_local()


def pipelining(group):
    torch.manual_seed(0)
    rank, ranks = group.rank(), group.size()
    stage = PipelineStage(nn.Linear(WIDTH, WIDTH), rank, ranks, torch.device("cpu"), group=group)
    schedule = ScheduleGPipe(stage, ranks, nn.functional.mse_loss)

    def call():
        if rank == 0:
            schedule.step(torch.ones(ranks, WIDTH))
        elif rank == ranks - 1:
            schedule.step(target=torch.ones(ranks, WIDTH), losses=[])
        else:
            schedule.step()
    return call


def functional(group):
    return lambda: (funcol.all_reduce(torch.ones(8), "sum", group) + 1).sum().item()


def compiled(group):
    @torch.compile(backend="aot_eager")
    def add_up(data):
        return funcol.all_reduce(data, "sum", group) + 1
    return lambda: add_up(torch.ones(8)).sum().item()


# ---- How the last rank fails, on the group of one caller ----

def killed(_):
    os.kill(os.getpid(), signal.SIGKILL)


def ended(_):
    atexit._run_exitfuncs()  # as an interpreter does that ends; one that was forked does not
    os._exit(0)


def stopped(_):
    os.kill(os.getpid(), signal.SIGSTOP)


def mismatched(group):
    dist.all_to_all_single(torch.ones(1000 * group.size()), torch.ones(1000 * group.size()),
                           group=group)


def destroyed(group):
    dist.destroy_process_group(group)


def aborted(group):
    dist.distributed_c10d._abort_process_group(group)


def out_of_memory(group):
    try:
        dist.all_reduce(torch.ones(1).expand(1 << 44), group=group)
    finally:
        dist.destroy_process_group(group)


def come_late(group):
    """Never come: the others find out by the timeout."""


def fail(way, groups):
    for group in groups.values():
        with contextlib.suppress(Exception):
            way(group)


def calls_made(group):
    return group.callbacks.program_group._failure.calls_begun


def survive(rounds, groups, on_begun):
    """Make all rounds at once, since some end by the timeout alone, and say when all are begun."""
    said = {}
    before = {name: calls_made(group) for name, group in groups.items()
              if name not in {"pipelining", "messages"}}  # which make no calls

    def make(name, call):
        try:
            call()
            said[name] = "no error"
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    threads = [threading.Thread(target=make, args=item) for item in rounds.items()]
    for thread in threads:
        thread.start()
    while any(calls_made(groups[name]) == made for name, made in before.items()):
        time.sleep(0.01)
    on_begun()
    for thread in threads:
        thread.join()
    return said


def main(way, *callers):
    dist.init_process_group("lightcc", timeout=PATIENCE)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    groups = {name: dist.new_group(timeout=timedelta(seconds=TIMEOUT_S)) for name in callers}
    rounds = {name: globals()[name](group) for name, group in groups.items()}
    for call in [*rounds.values()] * 2:  # DDP makes its buckets anew for the second round
        call()
    store = dist.distributed_c10d._get_default_store()
    survivors, last = range(ranks - 1), ranks - 1
    if rank == last:
        store.wait([f"begun {other}" for other in survivors], PATIENCE)
        fail(globals()[way], groups)
        if way == "come_late":
            store.wait([f"over {other}" for other in survivors], PATIENCE)
    else:
        said = survive(rounds, groups, lambda: store.set(f"begun {rank}", ""))
        print(json.dumps(said), flush=True)
    store.set(f"over {rank}", "")
    if rank != last:  # as an interpreter that ends: what the others are told of a failure arrives
        atexit._run_exitfuncs()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
