"""Features that torch builds on process groups, over lightcc, with four spawned ranks.

    python -m tests.harp.lightcc.torch.features [NAME ...]

Each function is a check and runs at every rank; what it compares with was computed by one process
alone. Prints a line of JSON: by check, its error or "right".
"""

import contextlib
import json
import sys
import tempfile
import threading
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch._dynamo  # DDP does so, once at each rank if not here
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from harp.lightcc.hook import GradientState, average_gradients
from harp.lightcc.settings import LightSettings
from harp.lightcc.torch.few_bits import BitsState, average_in_few_bits

RANKS = 4
SUM = float(sum(range(RANKS)))


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def make_batch(rows=16):
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(1))


def train_alone(steps=3):
    model, batch = make_model(), make_batch()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return model


def check_weights(named, alone):
    for (name, own), wanted in zip(named, alone.parameters(), strict=True):
        whole = own.full_tensor() if isinstance(own, DTensor) else own
        torch.testing.assert_close(whole.detach(), wanted.detach(), msg=lambda m, n=name: n + m)


# ---- Functional collectives ----


def functional_collectives(rank, folder):
    group = dist.group.WORLD
    own = torch.full((4, 2), float(rank))
    assert (functional.all_reduce(own, "sum", group) == SUM).all()
    assert (own == rank).all()  # it is functional
    gathered = functional.all_gather_tensor(own, 1, group)
    assert gathered[0].tolist() == [float(i // 2) for i in range(2 * RANKS)]
    scattered = functional.reduce_scatter_tensor(own, "avg", 0, group)
    assert scattered.tolist() == [[SUM / RANKS] * 2]
    sizes = [2 if i == rank else 0 for i in range(RANKS)]  # two rows to itself, of four
    sizes[(rank + 1) % RANKS] += 2
    came = [2 if i == rank else 0 for i in range(RANKS)]
    came[(rank - 1) % RANKS] += 2
    rows = functional.all_to_all_single(own, came, sizes, group)
    assert sorted(rows[:, 0].tolist()) == sorted(2 * [float(rank), float((rank - 1) % RANKS)])
    assert (functional.broadcast(own, 2, group) == 2).all()
    both = functional.all_reduce_coalesced([own, own + 1], "sum", group)
    assert [float(one[0, 0]) for one in both] == [SUM, SUM + RANKS]
    both = functional.all_gather_into_tensor_coalesced([own, own + 1], group)
    assert [one.shape[0] for one in both] == [4 * RANKS] * 2
    both = functional.reduce_scatter_tensor_coalesced([own, own], "sum", [0, 0], group)
    assert all((one == SUM).all() for one in both)


def compiled_ddp(rank, folder):
    """torch.compile of DDP: C++ calls the group amid what dynamo traces; buffers are broadcast."""
    net = torch.nn.Sequential(make_model(), torch.nn.BatchNorm1d(4))
    model, batch = DistributedDataParallel(net), make_batch()
    model.register_comm_hook(GradientState(), average_gradients)
    compiled = torch.compile(model, backend="aot_eager")
    alone = torch.nn.Sequential(make_model(), torch.nn.BatchNorm1d(4))
    for _ in range(3):
        for one in (compiled, alone):
            one(batch).square().mean().backward()
    check_weights([(name, own.grad) for name, own in net.named_parameters()], Gradients(alone))


class Gradients(torch.nn.Module):
    """The gradients of a model in the place of its parameters."""

    def __init__(self, model):
        super().__init__()
        self.parts = torch.nn.ParameterList([own.grad for own in model.parameters()])


def functional_gradients(rank, folder):
    group = dist.group.WORLD
    x = torch.full((RANKS, 2), float(rank), requires_grad=True)
    functional.all_gather_tensor_autograd(x, 0, group).sum().backward()
    assert (x.grad == RANKS).all()
    x.grad = None
    functional.reduce_scatter_tensor_autograd(x, "sum", 0, group).sum().backward()
    assert (x.grad == 1).all()
    x.grad = None
    functional.all_to_all_single_autograd(x, None, None, group).mul(rank + 1).sum().backward()
    assert x.grad[:, 0].tolist() == [float(i + 1) for i in range(RANKS)]


def begin_in_turn(rank, begin):
    """Begin a collective after the rank before has begun it, so that no rank but the last finds it
    done, and see it done before any goes on."""
    store = dist.distributed_c10d._get_default_store()
    turn = store.add(f"turns of rank {rank}", 1)
    if rank > 0:
        store.wait([f"turn {turn} of rank {rank - 1}"])
    begun = begin()
    store.set(f"turn {turn} of rank {rank}", "")
    dist.barrier()
    return begun


def gradients_of_what_ends_late(rank, folder):
    """The thread that ends a collective must not add to the graph of its result."""
    ops, name = torch.ops._c10d_functional, dist.group.WORLD.group_name
    equal = [1] * RANKS
    for call, wanted in (
            (lambda x: ops.all_reduce(x, "sum", name), RANKS),
            (lambda x: ops.all_gather_into_tensor(x, RANKS, name), RANKS),
            (lambda x: ops.reduce_scatter_tensor(x, "sum", RANKS, name), 1),
            (lambda x: ops.all_to_all_single(x, equal, equal, name), 1)):
        x = torch.full((RANKS, 2), float(rank), requires_grad=True)
        ops.wait_tensor(begin_in_turn(rank, lambda call=call, x=x: call(x))).sum().backward()
        assert (x.grad == wanted).all()


# ---- DTensor, meshes, tensor parallel, FSDP2 ----


def dtensor(rank, folder):
    mesh = init_device_mesh("cpu", (RANKS,))
    whole = torch.arange(70.0).reshape(10, 7)  # 10 rows do not divide by 4
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    assert rows.to_local().shape[0] == (3, 3, 3, 1)[rank]
    columns = rows.redistribute(placements=[Shard(1)])
    torch.testing.assert_close(columns.full_tensor(), whole)
    torch.testing.assert_close(rows.redistribute(placements=[Replicate()]).to_local(), whole)
    product = (columns @ distribute_tensor(whole.t().contiguous(), mesh, [Shard(0)]))
    torch.testing.assert_close(product.full_tensor(), whole @ whole.t())
    partial = DTensor.from_local(torch.full((4, 3), float(rank)), mesh, [Partial()])
    assert (partial.redistribute(placements=[Shard(0)]).to_local() == SUM).all()
    assert float(rows.sum().full_tensor()) == float(whole.sum())


def mesh_of_two_dimensions(rank, folder):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    first = rank // 2 * 2
    for name, mates in (("dp", [rank % 2, rank % 2 + 2]), ("tp", [first, first + 1])):
        data = torch.tensor([float(rank)])
        dist.all_reduce(data, group=mesh[name].get_group())
        assert data.item() == sum(mates)
    whole = torch.arange(48.0).reshape(8, 6)
    both = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert both.to_local().shape == (4, 3)
    turned = both.redistribute(placements=[Shard(1), Shard(0)])
    torch.testing.assert_close(turned.full_tensor(), whole)
    torch.testing.assert_close((both @ both.t()).full_tensor(), whole @ whole.t())


def tensor_parallel(rank, folder):
    mesh = init_device_mesh("cpu", (RANKS,))
    model, alone = make_model(), make_model()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    model(make_batch()).square().mean().backward()
    alone(make_batch()).square().mean().backward()
    for own, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own.grad.full_tensor(), wanted.grad)


def train_sharded(mesh, batch):
    model = make_model()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return model


def fsdp2(rank, folder):
    model = train_sharded(init_device_mesh("cpu", (RANKS,)), make_batch().chunk(RANKS)[rank])
    check_weights(model.named_parameters(), train_alone())


def fsdp1(rank, folder):
    model = FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"),
                                     auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    batch = make_batch().chunk(RANKS)[rank]
    for _ in range(3):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model):
        check_weights(model.named_parameters(), train_alone())


def hybrid_sharded(rank, folder):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = train_sharded(mesh, make_batch().chunk(RANKS)[rank])
    check_weights(model.named_parameters(), train_alone())


# ---- Pipelining, ZeRO, checkpoints ----


def pipelining(rank, folder):
    torch.manual_seed(3)
    layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(RANKS)]
    alone = torch.nn.Sequential(*layers)
    batch, target = make_batch(), torch.zeros(16, 8)
    alone_loss = torch.nn.functional.mse_loss(alone(batch), target)
    alone_loss.backward()
    wanted = layers[rank][0].weight.grad.clone()
    for schedule in (ScheduleGPipe, Schedule1F1B):
        alone.zero_grad()
        stage = PipelineStage(layers[rank], rank, RANKS, torch.device("cpu"))
        pipe = schedule(stage, 4, loss_fn=torch.nn.functional.mse_loss)
        losses = []
        pipe.step(*([batch] if rank == 0 else []),
                  **({"target": target, "losses": losses} if rank == RANKS - 1 else {}))
        torch.testing.assert_close(layers[rank][0].weight.grad, wanted)
        if rank == RANKS - 1:
            torch.testing.assert_close(sum(losses) / 4, alone_loss)


def zero_redundancy_optimizer(rank, folder):
    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(make_batch().chunk(RANKS)[rank]).square().mean().backward()
        optimizer.step()
    check_weights(model.named_parameters(), train_alone())
    optimizer.consolidate_state_dict(0)
    if rank == 0:
        assert len(optimizer.state_dict()["state"]) == 4


def distributed_checkpoint(rank, folder):
    model = train_sharded(init_device_mesh("cpu", (RANKS,)), make_batch().chunk(RANKS)[rank])
    saved = {"model": model.state_dict(), "step": torch.tensor(3)}
    dcp.save(saved, checkpoint_id=str(folder / "checkpoint"))
    # Another placement of the same tensors reads it.
    mesh = init_device_mesh("cpu", (2, 2))
    again = {name: distribute_tensor(torch.zeros(own.shape), mesh, [Replicate(), Shard(0)])
             for name, own in saved["model"].items()}
    into = {"model": again, "step": torch.tensor(0)}
    dcp.load(into, checkpoint_id=str(folder / "checkpoint"))
    assert int(into["step"]) == 3
    for name, own in saved["model"].items():
        torch.testing.assert_close(again[name].full_tensor(), own.full_tensor())


def full_checkpoint(rank, folder):
    """Rank 0 has all of a model; it is saved in the background, and given to sharded ones."""
    model = train_sharded(init_device_mesh("cpu", (RANKS,)), make_batch().chunk(RANKS)[rank])
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True,
                                                                 cpu_offload=True))
    fresh = make_model()
    fully_shard(fresh, mesh=init_device_mesh("cpu", (RANKS,)))
    set_model_state_dict(fresh, whole, options=StateDictOptions(full_state_dict=True,
                                                                broadcast_from_rank0=True))
    check_weights(fresh.named_parameters(), train_alone())
    saved = {"model": model.state_dict()}
    dcp.async_save(saved, checkpoint_id=str(folder / "in the background")).result()
    into = {"model": train_sharded(init_device_mesh("cpu", (RANKS,)), make_batch()).state_dict()}
    dcp.load(into, checkpoint_id=str(folder / "in the background"))
    for name, own in saved["model"].items():
        assert torch.equal(into["model"][name].to_local(), own.to_local())


# ---- Tensors ----


def tensors_of_all_kinds(rank, folder):
    storage = torch.full((6, 6), float(rank))
    dist.all_reduce(storage.t()[1:3, ::2])  # neither rows nor columns follow one another
    assert float(storage.sum()) == 30 * rank + 6 * SUM
    for empty in (torch.zeros(0), torch.zeros(0, 3), torch.zeros(3, 0, dtype=torch.int64)):
        dist.all_reduce(empty)
        dist.broadcast(empty, 1)
        dist.all_gather([empty.clone() for _ in range(RANKS)], empty)
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    assert scalar.item() == SUM
    whole = torch.zeros(RANKS, 3)  # results that share a storage; one of them is the input
    whole[rank] = rank
    dist.all_gather(list(whole), whole[rank])
    assert whole[:, 0].tolist() == [float(i) for i in range(RANKS)]
    dist.all_gather_into_tensor(whole.view(-1), whole[rank])
    assert whole[:, 2].tolist() == [float(i) for i in range(RANKS)]
    halves = torch.full((8,), float(rank)).chunk(2)  # two calls at once in one storage
    works = [dist.all_reduce(half, async_op=True) for half in halves]
    for work in works:
        work.wait()
    assert all((half == SUM).all() for half in halves)
    expanded = torch.tensor([float(rank)]).expand(4)  # one element, four times
    out = torch.zeros(4 * RANKS)
    dist.all_gather_into_tensor(out, expanded)
    assert out[::4].tolist() == [float(i) for i in range(RANKS)]
    parameter = torch.nn.Parameter(torch.full((3,), float(rank)))
    with torch.no_grad():
        dist.all_reduce(parameter)
    assert (parameter == SUM).all()
    with torch.inference_mode():  # the result is copied back by a thread that is not in it
        columns = torch.full((6, 4), float(rank)).t()[::2]
        dist.all_reduce(columns, async_op=True).wait()
    assert (columns == SUM).all()
    assert "do not fit" in error_of(
        lambda: dist.reduce_scatter_tensor(torch.zeros(2), torch.zeros(RANKS)))


def futures(rank, folder):
    data = [torch.full((3,), float(rank + i)) for i in range(8)]
    works = [dist.all_reduce(one, async_op=True) for one in data]
    chained = [work.get_future().then(lambda done: float(done.value()[0][0])) for work in works]
    sums = torch.futures.collect_all(chained).wait()
    assert [one.value() for one in sums] == [SUM + RANKS * i for i in range(8)]
    for work in works:
        assert work.wait()
        assert work.is_completed()


def sparse_gradients(rank, folder):
    own = torch.sparse_coo_tensor([[rank, 3, 3]], [1.0, 2.0, 4.0], (5,))
    dist.all_reduce(own)
    assert own.to_dense().tolist() == [1, 1, 1, 1 + 6 * RANKS, 0]
    empty = torch.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.int64), [], (3, 3))
    dist.all_reduce(empty)
    assert not empty.to_dense().any()
    assert "only the sum of sparse" in error_of(
        lambda: dist.all_reduce(own, dist.ReduceOp.MAX))
    alone, batch = torch.nn.EmbeddingBag(20, 3, sparse=True), torch.arange(16).reshape(8, 2)
    with torch.no_grad():
        alone.weight.fill_(0.5)
    model = DistributedDataParallel(torch.nn.EmbeddingBag.from_pretrained(
        alone.weight.detach().clone(), freeze=False, sparse=True))
    alone(batch).square().mean().backward()
    model(batch.chunk(RANKS)[rank]).square().mean().backward()
    torch.testing.assert_close(model.module.weight.grad.to_dense(), alone.weight.grad.to_dense())


def gradients_in_few_bits(rank, folder):
    def train(bits, group=None):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Sequential(
            torch.nn.Linear(40, 100), torch.nn.Tanh(), torch.nn.Linear(100, 1)), bucket_cap_mb=0.01,
            process_group=group)
        if bits:
            model.register_comm_hook(BitsState(bits, group), average_in_few_bits)
        inner = torch.optim.SGD(model.parameters(), 0.05)
        for step in range(12):
            data = torch.randn(16, 40, generator=torch.Generator().manual_seed(100 * step + rank))
            inner.zero_grad()
            (model(data) - data.sum(1, keepdim=True).sin()).square().mean().backward()
            inner.step()
        return torch.cat([one.detach().reshape(-1) for one in model.parameters()])

    def train_on_hosts(bits):
        return train(bits, dist.new_group(pg_options=LightSettings(two_d=True, intra_size=2)))

    dense = train(0)
    for bits, share, how in ((8, 0.01, train), (4, 0.1, train), (2, 0.6, train),
                             (8, 0.01, train_on_hosts), (4, 0.1, train_on_hosts)):
        found = how(bits)
        of_all = [torch.empty_like(found) for _ in range(RANKS)]
        dist.all_gather(of_all, found)
        assert all(torch.equal(found, one) for one in of_all)
        assert not torch.equal(found, dense)
        assert (found - dense).norm() < share * dense.norm()


# ---- Groups ----


def new_groups(rank, folder):
    for members in ([0, 2], [1, 2, 3], [3]):
        group = dist.new_group(members)
        if rank in members:
            data = torch.tensor([float(rank)])
            dist.all_reduce(data, group=group)
            assert data.item() == sum(members)
            dist.destroy_process_group(group)
    mine, both = dist.new_subgroups(2)
    data = torch.tensor([float(rank)])
    dist.all_reduce(data, group=mine)
    assert data.item() == sum(range(RANKS)[rank // 2 * 2:][:2])
    assert len(both) == 2


def batches_of_messages(rank, folder):
    after, before = (rank + 1) % RANKS, (rank - 1) % RANKS
    for group in (None, dist.new_group()):
        sent, came = torch.full((3,), float(rank)), torch.zeros(3)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, came, before, group),
                                            dist.P2POp(dist.isend, sent, after, group)]):
            work.wait()
        assert (came == before).all()
        assert (group or dist.group.WORLD)._get_backend(torch.device("cpu")).size() == RANKS


def two_groups_from_two_threads(rank, folder):
    groups = [dist.new_group() for _ in range(2)]
    found = [None, None]

    def work(which):
        data = torch.full((50_000,), float(which + 1))
        for _ in range(10):
            dist.all_reduce(data, dist.ReduceOp.AVG, group=groups[which])
            dist.barrier(groups[which])
        found[which] = float(data.sum())
    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [50_000.0, 100_000.0]


def fork_of_data_loader(rank, folder):
    loader = DataLoader(list(range(32)), batch_size=8, num_workers=2,
                        multiprocessing_context="fork")
    for _ in range(2):
        total = torch.zeros(1)
        for batch in loader:
            part = batch.sum().float().reshape(1)
            dist.all_reduce(part)
            total += part
        assert total.item() == RANKS * sum(range(32))


def error_of(call):
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "it went well"


def uneven_inputs(rank, folder):
    """DDP's reducer alone holds the work that counts the ranks with inputs left."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    with model.join(divide_by_initial_world_size=False):
        for step in range(rank + 1):
            model.zero_grad()
            model(torch.full((1, 1), float(rank))).sum().backward()
            left = range(step, RANKS)  # ranks with an input of this step
            assert model.module.weight.grad.item() == sum(left) / len(left)


def timeouts(rank, folder):
    group = dist.new_group(timeout=timedelta(seconds=8))  # the group is made within it, too
    if rank != 3:
        why = error_of(lambda: dist.barrier(group))
        said = [None] * 3
        others = dist.new_group([0, 1, 2], use_local_synchronization=True)
        dist.all_gather_object(said, why, group=others)
        assert said == [why] * 3
        assert "rank 3 did not come" in why
    dist.barrier()


def abort(rank, folder):
    group = dist.new_group()
    if rank == 1:
        dist.distributed_c10d._abort_process_group(group)
    else:
        why = error_of(lambda: dist.all_reduce(torch.ones(3), group=group))
        assert "aborted by rank 1" in why
    dist.barrier()
    again = dist.new_group()
    data = torch.ones(3)
    dist.all_reduce(data, group=again)
    assert (data == RANKS).all()


CHECKS = {check.__name__: check for check in (
    functional_collectives, functional_gradients, gradients_of_what_ends_late, compiled_ddp,
    dtensor, mesh_of_two_dimensions, tensor_parallel, fsdp1, fsdp2, hybrid_sharded, pipelining,
    zero_redundancy_optimizer, distributed_checkpoint, full_checkpoint, tensors_of_all_kinds,
    sparse_gradients, futures, uneven_inputs, new_groups, batches_of_messages,
    gradients_in_few_bits, two_groups_from_two_threads, fork_of_data_loader, timeouts, abort)}


def run(rank, names, folder):
    torch.set_num_threads(1)
    found = {}
    for name in names:
        dist.init_process_group("lightcc", init_method=f"file://{folder}/{name}", rank=rank,
                                world_size=RANKS, timeout=timedelta(seconds=60))
        try:
            CHECKS[name](rank, folder)
            dist.barrier()
            found[name] = "right"
        except Exception:  # every kind is to be reported
            found[name] = f"rank {rank}: {traceback.format_exc()}"
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    (folder / f"found{rank}").write_text(json.dumps(found))


def run_all(names):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(run, (names, Path(folder)), RANKS,
                                              start_method="fork")  # each import takes seconds
        ranks = [json.loads((Path(folder) / f"found{rank}").read_text()) for rank in range(RANKS)]
    return {name: next((rank[name] for rank in ranks if rank[name] != "right"), "right")
            for name in names}


if __name__ == "__main__":
    print(json.dumps(run_all(sys.argv[1:] or list(CHECKS))))
