"""One rank of test_backend.py, under torchrun's variables; prints what it found."""

import atexit
import gc
import json
import os
import signal
import sys
import threading
import time
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from harp.lightcc.hook import GradientState, average_gradients
from harp.lightcc.torch import LightGroup, hierarchical
from tests.support.leave import leave


def check_collectives(rank, ranks):
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8):
        data = torch.full((5, 3), rank + 1, dtype=dtype)
        dist.all_reduce(data)
        assert (data == ranks * (ranks + 1) // 2).all(), dtype
    count = torch.tensor([10 * rank + 1, -1 - rank])
    dist.all_reduce(count, dist.ReduceOp.AVG)  # as Lightning's self.log(..., sync_dist=True)
    sums = [10 * sum(range(ranks)) + ranks, sum(range(1, ranks + 1))]
    assert count.tolist() == [sums[0] // ranks, -(sums[1] // ranks)]
    largest = torch.tensor([float(rank), -float(rank)])
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    assert largest.tolist() == [ranks - 1, 0]
    strided = torch.full((4, 6), float(rank)).t()[::2]
    dist.all_reduce(strided)
    assert (strided == sum(range(ranks))).all()
    empty = torch.zeros(0)
    dist.all_reduce(empty)
    from_last = torch.full((3,), float(rank))
    dist.broadcast(from_last, ranks - 1)
    assert (from_last == ranks - 1).all()
    at_root = torch.full((3,), float(rank))
    dist.reduce(at_root, 0)
    assert (at_root == (sum(range(ranks)) if rank == 0 else rank)).all()


def check_one_element_with_a_stride(rank, ranks):
    """torch calls it contiguous, as with the last column of a batch of one."""
    def one(value):
        return torch.full((3, 4), float(value))[:1, -1]
    summed = one(rank + 1)
    dist.all_reduce(summed)
    assert summed.item() == ranks * (ranks + 1) / 2
    given = one(rank)
    dist.broadcast(given, 1)
    assert given.item() == 1
    parts = [one(-1) for _ in range(ranks)]
    dist.all_gather(parts, one(rank))
    assert [part.item() for part in parts] == list(range(ranks))
    came = one(-1)
    sending = dist.isend(one(rank), (rank + 1) % ranks)
    dist.recv(came, (rank - 1) % ranks)
    sending.wait()
    assert came.item() == (rank - 1) % ranks


def check_parts(rank, ranks):
    parts = [torch.zeros(i + 1) for i in range(ranks)]  # of different sizes
    dist.all_gather(parts, torch.full((rank + 1,), float(rank)))
    assert all((part == i).all() for i, part in enumerate(parts))
    whole = torch.zeros(2 * ranks)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
    assert whole.tolist() == [float(i // 2) for i in range(2 * ranks)]
    own = torch.zeros(2)
    dist.reduce_scatter_tensor(own, torch.arange(2.0 * ranks))
    assert own.tolist() == [ranks * (2.0 * rank), ranks * (2.0 * rank + 1)]
    own = torch.zeros(rank + 1)
    dist.reduce_scatter(own, [torch.full((i + 1,), float(i)) for i in range(ranks)])
    assert (own == ranks * rank).all()
    came = torch.zeros(ranks)
    dist.all_to_all_single(came, torch.full((ranks,), float(rank)))
    assert came.tolist() == [float(i) for i in range(ranks)]
    dist.all_to_all_single(came[:0], came[:0])
    uneven = torch.zeros(ranks * (rank + 1))
    dist.all_to_all_single(uneven, torch.full((ranks * (ranks + 1) // 2,), float(rank)),
                           [rank + 1] * ranks, [i + 1 for i in range(ranks)])
    assert uneven.tolist() == [float(i) for i in range(ranks) for _ in range(rank + 1)]
    gathered = [torch.zeros(2) for _ in range(ranks)] if rank == 0 else None
    dist.gather(torch.full((2,), float(rank)), gathered, 0)
    assert gathered is None or all((part == i).all() for i, part in enumerate(gathered))
    scattered = torch.zeros(2)
    dist.scatter(scattered, [torch.full((2,), float(i)) for i in range(ranks)]
                 if rank == 0 else None, 0)
    assert (scattered == rank).all()


def check_messages(rank, ranks):
    to, source = (rank + 1) % ranks, (rank - 1) % ranks
    came = torch.zeros(3)
    works = [dist.isend(torch.full((3,), float(rank)), to, tag=4), dist.irecv(came, source, tag=4)]
    for work in works:
        work.wait()
    assert (came == source).all()
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": i} for i in range(ranks)]
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    assert future.then(lambda done: done.value()[0] + 1).wait().tolist() == [ranks + 1] * 2
    pair = dist.new_group([0, ranks - 1])
    if rank in {0, ranks - 1}:
        data = torch.ones(4)
        dist.all_reduce(data, group=pair)
        assert (data == 2).all()
    dist.barrier()
    # So torch's function calls it from 2.14 on; earlier ones refuse groups other than gloo's.
    dist.group.WORLD.monitored_barrier(timedelta(seconds=60), wait_all_ranks=True)


def collectives(rank, ranks):
    """Everything that torch asks of a group, once."""
    check_collectives(rank, ranks)
    check_one_element_with_a_stride(rank, ranks)
    check_parts(rank, ranks)
    check_messages(rank, ranks)
    return "right"


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))


def batches(steps, size):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 10, generator=generator) for _ in range(steps)]


def train(net, inputs):
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    for batch in inputs:
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()


def ddp(rank, ranks):
    """Train on a share of each batch; the weights are those of one process with whole batches."""
    inputs = batches(10, 8 * ranks)
    net = DistributedDataParallel(model(), bucket_cap_mb=0.001)
    train(net, [batch[8 * rank:8 * (rank + 1)] for batch in inputs])
    alone = model()
    train(alone, inputs)
    for own, wanted in zip(net.module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, wanted)
    return [float(own.sum()) for own in net.module.parameters()]


def sparse(rank, ranks):
    """Train with a fifth of the gradients, the rest later, and from a checkpoint half way."""
    inputs = batches(30, 8 * ranks)
    mine = [batch[8 * rank:8 * (rank + 1)] for batch in inputs]
    net, state = DistributedDataParallel(model()), GradientState()
    net.register_comm_hook(state, average_gradients)
    train(net, mine[:15])
    restored = GradientState()
    restored.load_state_dict(state.state_dict())
    again = DistributedDataParallel(model())
    again.module.load_state_dict(net.module.state_dict())
    again.register_comm_hook(restored, average_gradients)
    train(again, mine[15:])
    with torch.no_grad():
        loss = float(again(inputs[-1]).square().mean())
        before = float(model()(inputs[-1]).square().mean())
    errors = [kept["error"] for kept in restored.state_dict()["buckets"].values()]
    return {"weights": [float(own.sum()) for own in again.module.parameters()],
            "loss": loss, "before": before, "errors": sum(float(e.abs().sum()) for e in errors)}


def hosts_of(rank, ranks):
    """Pretend: ranks in pairs, where HOSTS does not say else."""
    return os.environ.get("HOSTS", "0011")[:ranks][rank]


def any_backend(rank, ranks):
    """Train by the hook over gloo, and with plain DDP; hosts of two ranks are pretended."""
    if "all_reduce" in os.environ.get("WITHIN", ""):
        hierarchical.WITHOUT_REDUCE_SCATTER.add("gloo")
    inputs = [batch[8 * rank:8 * (rank + 1)] for batch in batches(10, 8 * ranks)]
    group = None
    if "unsorted" in os.environ.get("WITHIN", ""):
        group = dist.new_group([*reversed(range(ranks))], sort_ranks=False)
    net = DistributedDataParallel(model(), bucket_cap_mb=0.001, process_group=group)
    state = GradientState(group, host=hosts_of(rank, ranks))
    net.register_comm_hook(state, average_gradients)
    plain = DistributedDataParallel(model(), bucket_cap_mb=0.001)
    train(net, inputs)
    train(plain, inputs)
    for own, wanted in zip(net.module.parameters(), plain.module.parameters(), strict=True):
        torch.testing.assert_close(own, wanted)
    return [own.detach().view(torch.int32).flatten().tolist() for own in net.module.parameters()]


class Given(torch.nn.Module):
    """Its gradients are what it is given."""

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(size))
                                             for size in (1001, 700, 3)])

    def forward(self, given):
        return sum((part * own).sum() for part, own in zip(
            self.parts, given.split([len(part) for part in self.parts]), strict=True))


def whole_of(state, sizes):
    """Unsent gradients of a rank, of all buckets."""
    kept = [torch.zeros(size) for size in sizes]
    for (_, parts), memory in state.state_dict()["buckets"].items():
        at = memory["first"]
        bucket = torch.zeros(sum(parts))
        bucket[at:at + len(memory["error"])] = memory["error"]
        for size, part in zip(parts, bucket.split(list(parts)), strict=True):
            kept[sizes.index(size)] += part
    return torch.cat(kept)


def any_backend_sparse(rank, ranks):
    """Sent and unsent parts add up to all gradients; half way from all ranks' checkpoints."""
    state, sizes, seed = GradientState(host=hosts_of(rank, ranks)), [1001, 700, 3], 0
    given, came = torch.zeros(1704), torch.zeros(1704)
    for _ in range(2):
        net = DistributedDataParallel(Given(), bucket_cap_mb=0.004)
        net.register_comm_hook(state, average_gradients)
        for _ in range(6):
            seed += 1
            generator = torch.Generator().manual_seed(10 * seed + rank)
            own = torch.randn(1704, generator=generator)
            given += own
            net.zero_grad()
            net(own).backward()
            came += torch.cat([part.grad for part in net.module.parts]) * ranks
        states = [None] * ranks
        dist.all_gather_object(states, state.state_dict())
        left = whole_of(state, sizes)
        state = GradientState(host=hosts_of(rank, ranks))
        state.load_state_dicts(states)
    dist.all_reduce(given)
    kept = left.clone()
    dist.all_reduce(kept)
    torch.testing.assert_close(came + kept, given, atol=2e-2, rtol=0)
    return {"came": came.view(torch.int32).tolist(), "left": int((left != 0).sum()),
            "sent": int((net.module.parts[0].grad != 0).sum())}


def large(rank, ranks):
    """Gradients whose average fits their type, and whose sum does not; as plain DDP has them."""
    for dtype, value in ((torch.float16, 60000.0), (torch.bfloat16, 3e38)):
        given = torch.full((1704,), value, dtype=dtype) * torch.linspace(-1, 1, 1704, dtype=dtype)
        nets = [DistributedDataParallel(Given().to(dtype), bucket_cap_mb=0.002) for _ in range(2)]
        state = GradientState(host=hosts_of(rank, ranks))
        nets[0].register_comm_hook(state, average_gradients)
        for net in nets:
            net(given).backward()
        averages = [[part.grad for part in net.module.parts] for net in nets]
        for own, wanted in zip(*averages, strict=True):
            assert wanted.isfinite().all()
            torch.testing.assert_close(own, wanted)
    return "right"


class Broken(LightGroup):
    """LightCC's part of a rank that fails in a call."""

    def sum_between(self, *_, **__):
        if os.environ["HOW"] == "killed":
            os._exit(0)
        raise MemoryError("no room left")


def ends_by(net):
    """Train until it fails."""
    try:
        train(net, batches(100, 8))
    except (RuntimeError, TypeError) as error:
        return str(error)
    return "nothing"


def any_backend_fails(rank, ranks):
    """The last rank fails after some steps: in LightCC's part, before it, or for good."""
    state = GradientState(host=hosts_of(rank, ranks))
    net = DistributedDataParallel(model(), bucket_cap_mb=0.001)
    net.register_comm_hook(state, average_gradients)
    train(net, batches(3, 8))
    dist.barrier()  # a failure reaches whoever has not ended its last step
    how = os.environ["HOW"]
    if rank == ranks - 1 and how == "before":
        state.memory_of = None
    elif rank == ranks - 1:
        state._hierarchical._light.__class__ = Broken
    said = [ends_by(net), ends_by(net)]  # by the failure, then at once
    if how != "killed":  # all are still there, and so is the group that they were given
        dist.barrier()
    print(json.dumps(said))
    leave()


def refused(rank, ranks):
    """Hosts have different numbers of ranks."""
    try:
        GradientState(host=hosts_of(rank, ranks))
    except ValueError as error:
        return str(error)
    return "it was not noticed"


def powersgd(rank, ranks):
    """Train by torch's PowerSGD hook; all ranks have the same weights."""
    inputs = batches(20, 8 * ranks)
    net = DistributedDataParallel(model(), bucket_cap_mb=0.001)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=3,
                                        min_compression_rate=0.5)
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(net, [batch[8 * rank:8 * (rank + 1)] for batch in inputs])
    with torch.no_grad():
        loss = float(net(inputs[-1]).square().mean())
        before = float(model()(inputs[-1]).square().mean())
    return {"weights": [float(own.sum()) for own in net.module.parameters()],
            "loss": loss, "before": before, "compressed": state.total_numel_after_compression}


def powersgd_of_many(rank, ranks):
    """The same with many buckets: what its callbacks call comes between other buckets' sums."""
    net = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(128, 128)
                                                        for _ in range(20)]), bucket_cap_mb=0.06)
    net.register_comm_hook(
        powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2),
        powerSGD_hook.powerSGD_hook)
    train(net, [torch.randn(8, 128) * (rank + 1) for _ in range(8)])
    with torch.no_grad():
        return [own.double().sum().item() for own in net.module.parameters()]


def chained(rank, ranks):
    """Callbacks wait for what they call, and others are chained to them, before and after."""
    many, futures = 40, []
    data = [torch.full((1 << 16,), i + 1.0) for i in range(many)]

    def call_again(future):
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    def call_within(future):
        again = dist.all_reduce(future.value(), async_op=True).get_future()
        return again.then(lambda done: dist.all_reduce(done.value()[0], async_op=True)
                          .get_future().wait()[0]).wait()
    for i in range(many):
        work = dist.all_reduce(data[i], async_op=True)
        if i % 2 == rank % 2:  # it is over when it is chained to, at some ranks
            work.wait()
        future = work.get_future()
        futures.append(future.then(call_again).then(call_within))
    found = [future.wait()[0].item() for future in futures]
    assert found == [ranks ** 4 * (i + 1.0) for i in range(many)], found
    failing = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda _: 1 // 0)
    try:
        failing.then(lambda future: future.value()).wait()
    except ZeroDivisionError:
        return "right"
    return "no error"


def leaving(rank, ranks):
    """A thread makes calls while another one leaves; and one is made afterwards."""
    said = []

    def call(group, asynchronously):
        data = torch.ones(1000)
        try:
            while True:
                work = dist.all_reduce(data, group=group, async_op=asynchronously)
                if work:
                    work.wait()
        except RuntimeError as error:
            said.append(str(error))
    for asynchronously in [False, True] * 5:
        group = dist.new_group()
        thread = threading.Thread(target=call, args=(group, asynchronously), daemon=True)
        thread.start()
        dist.barrier()
        group.shutdown()
        thread.join(60)
        assert not thread.is_alive()
        try:
            group.allreduce([torch.ones(1)]).wait()
        except RuntimeError as error:
            said.append(str(error))
    assert len(said) == 20, said
    return "right"


def held(rank, ranks):
    """No tensor is kept by a work that is over; the cyclic collector does not run."""
    gc.disable()
    calls = {"all_reduce": lambda data: dist.all_reduce(data, async_op=True),
             "of two": lambda data: dist.group.WORLD.allreduce([data, data.clone()]),
             "strided": lambda data: dist.all_reduce(data.view(2, -1).t(), async_op=True),
             "scattered": lambda data: dist.reduce_scatter_tensor(
                 data.new_empty(len(data) // ranks), data, async_op=True),
             "future": lambda data: dist.all_reduce(data, async_op=True).get_future()}
    kept = []
    for name, call in calls.items():
        data = torch.ones(1200)
        gone = threading.Event()
        weakref.finalize(data, gone.set)
        work = call(data)
        work.wait()
        del data, work
        kept += [name] * (not gone.wait(30))  # other threads let go of it soon
    return kept


def late_group(rank, ranks):
    """The last rank does not come to a new group; the others get an error, and can end."""
    said = ""
    if rank < ranks - 1:
        try:
            dist.new_group(timeout=timedelta(seconds=2))
        except RuntimeError as error:
            said = str(error)
    store = dist.distributed_c10d._get_default_store()
    if rank == ranks - 1:  # who leaves is named before the time is over
        store.wait([f"ended/{other}" for other in range(rank)])
    store.set(f"ended/{rank}", "")
    if rank == 0:  # it has the store
        store.wait([f"ended/{other}" for other in range(ranks)])
    return said


def killed_between_groups(rank, ranks):
    """Rank 0 is killed when there is a group; the others make more, with it and without it."""
    one = torch.ones(1)
    dist.all_reduce(one)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    said = []
    for members in (range(ranks), [0, rank]):
        said += refusal(lambda members=members: dist.new_group(
            members, use_local_synchronization=len(members) < ranks))
    without = dist.new_group(range(1, ranks), use_local_synchronization=True)
    dist.all_reduce(one, group=without)
    return {"said": said, "sum": one.item()}


def left_between_groups(rank, ranks):
    """Rank 0 ends or destroys its groups, and makes no more; the others make one with it."""
    one, both = torch.ones(1), dist.new_group(list(range(ranks)))
    dist.all_reduce(one, group=both)
    dist.destroy_process_group(both)  # which says nothing about the rank
    dist.all_reduce(one, group=dist.new_group(list(range(ranks))))
    if rank == 0:
        if os.environ["HOW"] == "destroyed":
            dist.destroy_process_group()
        else:
            atexit._run_exitfuncs()  # as an interpreter does that was not forked
        sys.exit()
    said = refusal(dist.new_group)
    without = dist.new_group(range(1, ranks), use_local_synchronization=True)
    dist.all_reduce(one, group=without)
    return {"said": said, "sum": one.item()}


def refusal(call):
    try:
        call()
    except RuntimeError as error:
        return [str(error)]
    return []


def forked(rank, ranks):
    """A child of fork gets the error that the group is not its own."""
    data = torch.ones(8)
    dist.all_reduce(data)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        said = []
        calls = (lambda: dist.all_reduce(data), dist.barrier,
                 lambda: dist.all_reduce(data, async_op=True).wait(),
                 lambda: dist.send(data, 1 - rank))
        for call in calls:
            said += refusal(call)
        os.write(write, json.dumps(said).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    dist.all_reduce(data)
    assert (data == ranks ** 2).all()
    return json.loads(os.read(read, 10000))


def killed(rank, ranks):
    """The last rank ends without a word in the middle of calls; the others make a new group."""
    data = torch.ones(100_000)
    for i in range(1000):
        if rank == ranks - 1 and i == 20:
            os._exit(9)
        began = time.monotonic()
        try:
            dist.all_reduce(data)
        except RuntimeError as error:
            seconds = time.monotonic() - began
            dist.destroy_process_group()
            dist.init_process_group("lightcc", init_method=f"file://{os.environ['AGAIN']}",
                                    rank=rank, world_size=ranks - 1)
            data = torch.tensor([rank + 1.0])
            dist.all_reduce(data)
            return {"error": str(error), "seconds": seconds, "again": data.item()}
    return "it was not noticed"


def different(rank, ranks):
    """Rank 0 calls with another shape."""
    try:
        dist.all_reduce(torch.ones(8 if rank else 9))
    except RuntimeError as error:
        return str(error)
    return "it was not noticed"


def types(rank, ranks):
    """Rank 0 calls with another type of as many bytes."""
    own = torch.full((ranks,), rank, dtype=torch.float32 if rank else torch.int32)
    said = []
    for call in (lambda group: dist.broadcast(own, 1, group),
                 lambda group: dist.all_gather_into_tensor(own.repeat(ranks), own, group),
                 lambda group: dist.all_gather([own.clone() for _ in range(ranks)], own, group),
                 lambda group: dist.all_to_all_single(own.clone(), own, group=group),
                 lambda group: dist.gather(own, [own.clone() for _ in range(ranks)]
                                           if rank == 0 else None, 0, group)):
        group = dist.new_group()
        try:
            call(group)
            dist.barrier(group)
            said.append("it was not noticed")
        except RuntimeError as error:
            said.append(str(error))
    return said


def sentence_of(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return "it was not noticed"


def mistakes(rank, ranks):
    """Calls that a rank can know to be wrong; the group goes on after each."""
    from torch.distributed.tensor import DeviceMesh, DTensor, Replicate

    one, mesh = torch.ones(2), DeviceMesh("cpu", list(range(ranks)))
    parts = [torch.zeros(2) for _ in range(ranks)]
    calls = (
        lambda: dist.broadcast(one, ranks), lambda: dist.broadcast(one, -1),
        lambda: dist.broadcast(torch.ones(4, 4).t(), ranks), lambda: dist.reduce(one, ranks),
        lambda: dist.gather(one, None, ranks), lambda: dist.scatter(one, None, ranks),
        lambda: dist.send(one, ranks), lambda: dist.recv(one, ranks),
        lambda: dist.recv(one, rank),
        lambda: dist.all_gather_into_tensor(torch.zeros(ranks, dtype=torch.float64), one),
        lambda: dist.all_reduce(torch.eye(3).to_sparse_csr()),
        lambda: dist.all_reduce(torch.nested.nested_tensor([one, one])),
        lambda: dist.all_reduce(DTensor.from_local(one, mesh, [Replicate()])),
        lambda: dist.all_gather(parts, DTensor.from_local(one, mesh, [Replicate()])))
    said = [sentence_of(call) for call in calls]
    dist.all_reduce(one)
    return {"said": said, "sum": one.tolist()}


if __name__ == "__main__":
    dist.init_process_group(os.environ.get("BACKEND", "lightcc") or None)
    found = globals()[sys.argv[1]](dist.get_rank(), dist.get_world_size())
    print(json.dumps(found))
    dist.destroy_process_group()
    if "gloo" in os.environ.get("BACKEND", ""):
        leave()
