"""A rank whose tensors are on the accelerator of tests.support.late_accelerator, over LightCC.

    accelerator_rank.py NAME

Each function below is a check; torchrun's variables say who this rank is.
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import harp.lightcc.horovod.torch as hvd
import harp.lightcc.torch  # noqa: F401  (registers the backend)
from harp.lightcc.hook import GradientState, average_gradients
from harp.lightcc.outer import DiLoCo
from tests.support import late_accelerator
from tests.support.leave import leave

late_accelerator.register()
DEVICE = torch.device(late_accelerator.NAME)


def collectives_follow_kernels_and_come_before_them(rank, ranks):
    """Fills and copies are late: only what was waited for is there."""
    def late(value, *shape):
        return torch.empty(shape, device=DEVICE).fill_(value)
    total = sum(range(ranks))
    data, largest = late(rank, 1000), late(rank, 7)
    works = [dist.all_reduce(data, async_op=True),
             dist.all_reduce(largest, dist.ReduceOp.MAX, async_op=True)]
    for work in works:
        work.wait()
    assert (data * 2).cpu().tolist() == [2.0 * total] * 1000
    assert (largest + 1).cpu().tolist() == [float(ranks)] * 7
    shared, whole, part = late(rank, 3), late(-1, 2 * ranks), late(-1, 2)
    dist.broadcast(shared, 1)
    dist.all_gather_into_tensor(whole, late(rank, 2))
    dist.reduce_scatter_tensor(part, late(rank, 2 * ranks))
    assert shared.cpu().tolist() == [1.0] * 3
    assert whole.cpu().tolist() == [float(one) for one in range(ranks) for _ in range(2)]
    assert part.cpu().tolist() == [float(total)] * 2
    came = late(-1, ranks)
    dist.all_to_all_single(came, torch.arange(float(ranks), device=DEVICE) + 10 * rank)
    assert came.cpu().tolist() == [10.0 * one + rank for one in range(ranks)]
    if rank == 0:
        dist.send(late(5, 4), 1)
    elif rank == 1:
        got = late(-1, 4)
        dist.recv(got, 0)
        assert got.cpu().tolist() == [5.0] * 4


def the_own_stream_of_a_caller_is_waited_for(rank, ranks):
    stream = torch.Stream(DEVICE)
    with stream:
        data = torch.empty(50, device=DEVICE).fill_(rank)
        work = dist.all_reduce(data, async_op=True)
        work.wait()
        found = torch.empty(50, pin_memory=True)
        found.copy_(data, non_blocking=True)
    stream.synchronize()
    assert found.tolist() == [float(sum(range(ranks)))] * 50


def _train(device, rank, hook, steps=4):
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3))
    net.to(device)
    model = DistributedDataParallel(net)
    if hook:
        model.register_comm_hook(GradientState(), average_gradients)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(steps):
        data = torch.randn(5, 40, generator=torch.Generator().manual_seed(100 * rank + step))
        optimizer.zero_grad()
        model(data.to(device)).square().mean().backward()
        optimizer.step()
    return torch.cat([one.detach().cpu().reshape(-1) for one in net.parameters()])


def ddp_trains_as_on_the_cpu(rank, _):
    for hook in (False, True):
        found = _train(DEVICE, rank, hook)
        assert torch.equal(found, _train("cpu", rank, hook)), hook
        assert found.isfinite().all()


def an_outer_step_is_that_of_the_cpu(rank, _):
    for bits in (32, 8):
        found = []
        for device in ("cpu", DEVICE):
            net = torch.nn.Linear(30, 20, bias=False)
            with torch.no_grad():
                net.weight.fill_(1.0)
            net.to(device)
            outer = DiLoCo(net, torch.optim.SGD(net.parameters(), 0.1), every=2, bits=bits)
            for step in range(4):
                data = torch.randn(5, 30,
                                   generator=torch.Generator().manual_seed(100 * rank + step))
                outer.optimizer.zero_grad()
                net(data.to(device)).square().mean().backward()
                outer.step()
            found.append(net.weight.detach().cpu())
        assert torch.equal(*found), bits


def horovod_calls_give_tensors_where_theirs_are(rank, ranks):
    def late(value, *shape):
        return torch.empty(shape, device=DEVICE).fill_(value)
    total = sum(range(ranks))

    def check(found, wanted):
        assert found.device.type == DEVICE.type
        assert found.cpu().tolist() == wanted
    given = late(rank, 5)
    check(hvd.allreduce(given, op=hvd.Sum), [float(total)] * 5)
    check(given, [float(rank)] * 5)
    check(hvd.allreduce_(given, op=hvd.Sum), [float(total)] * 5)
    check(given, [float(total)] * 5)
    check(hvd.allreduce(late(rank, 2), op=hvd.Max, prescale_factor=2.0), [2.0 * (ranks - 1)] * 2)
    check(hvd.broadcast(late(rank, 3), 1), [1.0] * 3)
    check(hvd.allgather(late(rank, rank + 1)),
          [float(one) for one in range(ranks) for _ in range(one + 1)])
    check(hvd.reducescatter(late(rank, ranks), op=hvd.Sum), [float(total)])
    came, _ = hvd.alltoall(torch.arange(float(ranks), device=DEVICE) + 10 * rank,
                           torch.ones(ranks, dtype=torch.int32))
    check(came, [10.0 * one + rank for one in range(ranks)])
    for one, wanted in zip(hvd.grouped_allreduce([late(rank, 2), late(1, 1)], op=hvd.Sum),
                           ([float(total)] * 2, [float(ranks)]), strict=True):
        check(one, wanted)
    stream = torch.Stream(DEVICE)
    with stream:
        other = hvd.allreduce(late(rank, 4), op=hvd.Sum) + 1
        check(other, [total + 1.0] * 4)


def a_horovod_optimizer_trains_as_on_the_cpu(rank, _):
    found = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
        net.to(device)
        # Each optimizer has names of its own.
        named = [(f"{device}.{name}", one) for name, one in net.named_parameters()]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1),
                                             named_parameters=named)
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        for step in range(3):
            data = torch.randn(5, 8, generator=torch.Generator().manual_seed(100 * rank + step))
            optimizer.zero_grad()
            net(data.to(device)).square().mean().backward()
            optimizer.step()
        found.append(torch.cat([one.detach().cpu().reshape(-1) for one in net.parameters()]))
    assert torch.equal(*found)


def main(name):
    torch.set_num_threads(1)
    if "horovod" in name:
        hvd.init()
        globals()[name](hvd.rank(), hvd.size())
        hvd.shutdown()
    else:
        dist.init_process_group("lightcc")
        globals()[name](dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
