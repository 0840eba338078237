"""One rank of test_horovod.py, under a launcher's variables; prints what it found."""

import json
import logging
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import harp.lightcc.horovod.torch as hvd


def model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))


def batches(steps, size):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 10, generator=generator) for _ in range(steps)]


def train(net, optimizer, inputs):
    for batch in inputs:
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()


def weights(net):
    return [round(float(own.double().sum()), 6) for own in net.parameters()]


def check_calls():
    rank, ranks = hvd.rank(), hvd.size()
    total = ranks * (ranks + 1) // 2
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64):
        data = torch.full((5, 3), rank + 1, dtype=dtype)
        assert (hvd.allreduce(data, op=hvd.Sum) == total).all(), dtype
        assert (data == rank + 1).all()
    assert hvd.allreduce(torch.tensor([-3, 7 + rank])).tolist() == [
        -3, 7 + sum(range(ranks)) // ranks]  # of whole numbers fractions are cut off
    assert hvd.allreduce(torch.tensor([float(rank)]), name="mean").item() == (ranks - 1) / 2
    data = torch.full((4, 6), float(rank)).t()[::2]
    assert hvd.allreduce_(data, op=hvd.Max) is data
    assert (data == ranks - 1).all()
    assert hvd.allreduce(torch.ones(2), prescale_factor=3, postscale_factor=2,
                         op=hvd.Sum).tolist() == [6 * ranks] * 2
    assert hvd.allreduce(torch.ones(2), compression=hvd.Compression.fp16).dtype == torch.float32
    pair = [torch.ones(3), torch.full((2, 2), float(rank))]
    for begin in (hvd.grouped_allreduce_async, hvd.grouped_allreduce_async_):
        handle = begin(pair, op=hvd.Max)  # one for all, as Horovod has it
        first, second = hvd.synchronize(handle)
        assert first.tolist() == [1] * 3
        assert second.tolist() == [[ranks - 1] * 2] * 2
    assert pair[1].tolist() == [[ranks - 1] * 2] * 2
    one, other = hvd.grouped_allreduce([torch.ones(3), torch.full((2, 2), float(rank))],
                                       op=hvd.Sum)
    assert one.tolist() == [ranks] * 3
    assert (other == sum(range(ranks))).all()
    parts = hvd.allgather(torch.full((rank, 2), rank))
    assert parts[:, 0].tolist() == [i for i in range(ranks) for _ in range(i)]
    root = ranks - 1
    assert hvd.broadcast(torch.full((3,), rank), root).tolist() == [root] * 3
    came, splits = hvd.alltoall(torch.full((ranks * (ranks + 1) // 2,), rank),
                                splits=torch.arange(1, ranks + 1))
    assert came.tolist() == [i for i in range(ranks) for _ in range(rank + 1)]
    assert splits.tolist() == [rank + 1] * ranks
    assert hvd.alltoall(torch.full((ranks,), rank)).tolist() == list(range(ranks))
    came, splits = hvd.synchronize(hvd.alltoall_async(torch.full((ranks,), rank)))
    assert (came.tolist(), splits.tolist()) == (list(range(ranks)), [1] * ranks)
    rows = torch.arange(2 * ranks + 1).reshape(-1, 1).repeat(1, 2)
    mine = hvd.reducescatter(rows, op=hvd.Sum)
    first = 2 * rank + min(rank, 1)
    assert mine[:, 0].tolist() == [ranks * i for i in range(first, first + 2 + (rank < 1))]
    assert hvd.broadcast_object({"of": rank}, 0) == {"of": 0}
    assert hvd.allgather_object({"of": rank}) == [{"of": i} for i in range(ranks)]
    hvd.barrier()


def check_one_element_with_a_stride():
    """A batch of one, which torch calls contiguous, though its stride is not 1."""
    rank, ranks = hvd.rank(), hvd.size()

    def one():
        return torch.full((3, 4), float(rank))[:1, -1]
    assert one().stride() != (1,)
    assert hvd.allreduce(one(), op=hvd.Sum).tolist() == [sum(range(ranks))]
    for call, right in ((hvd.allreduce_, (ranks - 1) / 2), (hvd.broadcast_, ranks - 1)):
        data = one()
        call(data, *([ranks - 1] if call is hvd.broadcast_ else []))
        assert data.tolist() == [right]
    assert hvd.grouped_allreduce([one(), one()], op=hvd.Max)[1].tolist() == [ranks - 1]
    assert hvd.broadcast(one(), 0).tolist() == [0]
    assert hvd.allgather(one()).tolist() == list(range(ranks))
    assert hvd.alltoall(one(), torch.tensor([1] + [0] * (ranks - 1)))[0].tolist() == (
        list(range(ranks)) if rank == 0 else [])
    assert hvd.reducescatter(one(), op=hvd.Sum).tolist() == (
        [sum(range(ranks))] if rank == 0 else [])


def check_gradients():
    rank, ranks = hvd.rank(), hvd.size()
    for call in (lambda x: hvd.allreduce(x, op=hvd.Sum), hvd.allgather, hvd.alltoall,
                 lambda x: hvd.reducescatter(x, op=hvd.Sum)):
        x = torch.ones(2 * ranks, 3, requires_grad=True)
        call(x).sum().backward()
        assert (x.grad > 0).all()
    x = torch.ones(2, requires_grad=True)
    hvd.broadcast(x, 0).sum().backward()
    assert (x.grad == (1 if rank == 0 else 0)).all()


def of_ranks(rows, *shape, dtype=np.float32):
    """Input of each rank; all ranks know it, so numpy gives the expected result."""
    random = np.random.default_rng(7)
    return [random.integers(-50, 50, (rows(rank), *shape)).astype(dtype)
            for rank in range(hvd.size())]


def grouped():
    """Groups of several types, with rows that differ between ranks, against numpy."""
    rank, ranks = hvd.rank(), hvd.size()
    gathered = [of_ranks(lambda r: r, 3), of_ranks(lambda r: 4 - r, dtype=np.int64),
                of_ranks(lambda r: 2 * (r == 1), 2, 2, dtype=np.float16)]
    for call in (hvd.grouped_allgather,
                 lambda *asked, **more: hvd.synchronize(hvd.grouped_allgather_async(*asked,
                                                                                    **more))):
        found = call([torch.from_numpy(parts[rank]) for parts in gathered], name="g")
        for own, parts in zip(found, gathered, strict=True):
            np.testing.assert_array_equal(own.numpy(), np.concatenate(parts))
    scattered = [of_ranks(lambda _: 2 * ranks + 1, 2), of_ranks(lambda _: ranks),
                 of_ranks(lambda _: 1, 5, dtype=np.float64),
                 of_ranks(lambda _: ranks + 2, dtype=np.int32)]
    for op, options in ((hvd.Sum, {}), (hvd.Average, {}), (hvd.Max, {}),
                        (hvd.Sum, {"prescale_factor": 0.5, "postscale_factor": 3.0})):
        tensors = [torch.from_numpy(parts[rank]) for parts in scattered]
        for found in (hvd.grouped_reducescatter(tensors, op=op, **options), hvd.synchronize(
                hvd.grouped_reducescatter_async(tensors, name="s", op=op, **options))):
            for own, parts in zip(found, scattered, strict=True):
                np.testing.assert_allclose(own.numpy(), reduced(op, parts, **options), rtol=1e-6)
        for parts, before in zip(scattered, tensors, strict=True):
            assert (before.numpy() == parts[rank]).all()  # what is given is left alone
    assert hvd.grouped_reducescatter([torch.ones(ranks)], compression=hvd.Compression.fp16,
                                     op=hvd.Sum)[0].tolist() == [ranks]
    one = hvd.add_process_set([0]) if ranks > 1 else hvd.global_process_set
    if one.included():
        assert hvd.grouped_allgather([torch.ones(2)], process_set=one)[0].tolist() == [1, 1]
        assert hvd.grouped_reducescatter([torch.ones(2)], process_set=one)[0].tolist() == [1, 1]
    check_grouped_gradients()
    return "right"


def reduced(op, parts, prescale_factor=1.0, postscale_factor=1.0):
    """This rank's rows as numpy reduces them; of whole numbers fractions are cut off."""
    parts = [(part * prescale_factor).astype(part.dtype) for part in parts]
    total = np.max(parts, axis=0) if op == hvd.Max else np.sum(parts, axis=0)
    total = total * (postscale_factor / (hvd.size() if op == hvd.Average else 1))
    return np.array_split(total.astype(parts[0].dtype), hvd.size())[hvd.rank()]


def check_grouped_gradients():
    """A group's gradients are those of its tensors one by one."""
    ranks = hvd.size()
    for together, alone in ((lambda x: hvd.grouped_allreduce(x, op=hvd.Sum),
                             lambda x: hvd.allreduce(x, op=hvd.Sum)),
                            (hvd.grouped_allgather, hvd.allgather),
                            (lambda x: hvd.grouped_reducescatter(x, op=hvd.Sum),
                             lambda x: hvd.reducescatter(x, op=hvd.Sum))):
        found = []
        for way in (together, lambda x, alone=alone: [alone(one) for one in x]):
            inputs = [torch.ones(2 * ranks, 3, requires_grad=True),
                      torch.full((ranks + hvd.rank() * (alone is hvd.allgather),), 2.0,
                                 requires_grad=True)]
            sum((at + 2) * (one * one).sum() for at, one in enumerate(way(inputs))).backward()
            found.append([one.grad for one in inputs])
        for own, wanted in zip(*found, strict=True):
            torch.testing.assert_close(own, wanted)


def collectives():
    """Every call, with names in another order at each rank."""
    check_calls()
    check_one_element_with_a_stride()
    check_gradients()
    names = [f"t{i}" for i in range(40)]
    names = names[hvd.rank():] + names[:hvd.rank()]
    handles = {name: hvd.allreduce_async(torch.full((100,), float(name[1:])), name=name,
                                         op=hvd.Sum) for name in names}
    for name, handle in handles.items():
        assert (hvd.synchronize(handle) == hvd.size() * float(name[1:])).all(), name
    return "right"


def refused(call, kind):
    try:
        call()
    except kind as error:
        return str(error)
    return "it was not noticed"


def mistakes():
    """A mismatch is one error at all ranks, and the group lives on."""
    types = torch.float32, torch.float64
    found = [refused(call, hvd.RequestError) for call in (
        lambda: hvd.allreduce(torch.ones(2 + hvd.rank()), name="a"),
        lambda: hvd.allreduce(torch.ones(2, dtype=types[hvd.rank() % 2]), name="b"),
        lambda: hvd.broadcast(torch.ones(2), hvd.rank(), name="c"))]
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    if hvd.rank() == 0:
        first = hvd.allreduce_async_(torch.ones(3), name="twice")
        found.append(refused(lambda: hvd.allreduce_async(torch.ones(3), name="twice"),
                             ValueError))  # Horovod's type, and at once
    hvd.barrier()  # the others ask for it now
    hvd.synchronize(first if hvd.rank() == 0 else hvd.allreduce_async_(torch.ones(3),
                                                                       name="twice"))
    return found + [refused(call, (NotImplementedError, ValueError)) for call in (
        lambda: hvd.allreduce(torch.ones(1), op=hvd.Adasum),
        lambda: hvd.allreduce(torch.ones(1, dtype=torch.bool), op=hvd.Average),
        lambda: hvd.allreduce(torch.ones(1, device="meta")))]


def group_mistakes():
    """A group in which something does not go together fails whole, and no tensor of it waits."""
    rank, two = hvd.rank(), [torch.ones(2), torch.ones(3)]
    found = [refused(call, hvd.RequestError) for call in (
        lambda: hvd.grouped_allgather([torch.ones(2), torch.ones(2, 1 + rank)], name="a"),
        lambda: hvd.grouped_reducescatter([torch.ones(2 + rank), torch.ones(2)], name="b"),
        lambda: hvd.grouped_allreduce(two + [torch.ones(1)] * rank, name="c"),
        lambda: hvd.grouped_allgather(two[rank == 0:], name="d"))]
    for call in (hvd.grouped_allgather, hvd.grouped_reducescatter, hvd.grouped_allreduce):
        for name in "abcd":
            assert len(call(two, name=name)) == 2
    return found


def training():
    """Each rank trains on its share; the weights are those of one process with all of it."""
    rank, ranks = hvd.rank(), hvd.size()
    inputs = batches(10, 8 * ranks)
    mine = [batch[8 * rank:8 * (rank + 1)] for batch in inputs]
    found = {}
    for case, options in {"plain": {}, "groups": {"num_groups": 2},
                          "predivide": {"gradient_predivide_factor": 2.0},
                          "fp16": {"compression": hvd.Compression.fp16}}.items():
        net = model(seed=rank)
        hvd.broadcast_parameters(model().state_dict() if rank == 0 else net.state_dict(), 0)
        if rank == 0:
            net = model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), 0.05, momentum=0.5),
            named_parameters=net.named_parameters(), **options)
        train(net, optimizer, mine)
        alone = model()
        train(alone, torch.optim.SGD(alone.parameters(), 0.05, momentum=0.5), inputs)
        for own, wanted in zip(net.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(own, wanted, rtol=1e-2 if case == "fp16" else 1.3e-6,
                                       atol=1e-2 if case == "fp16" else 1e-5)
        found[case] = weights(net)
    check_gradients_that_come_otherwise(inputs, mine)
    # Two backward passes a step are a batch of both.
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(net.parameters()),
                                         named_parameters=net.named_parameters(),
                                         backward_passes_per_step=2)
    for batch in mine:
        optimizer.zero_grad()
        for half in batch.split(4):
            (net(half).square().mean() / 2).backward()
        optimizer.step()
    alone = model()
    train(alone, torch.optim.Adam(alone.parameters()), inputs)
    for own, wanted in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, wanted)
    other = torch.optim.Adam(net.parameters())
    if rank == 0:
        other.load_state_dict(optimizer.state_dict())
    hvd.broadcast_optimizer_state(other, 0)
    state = other.state_dict()["state"]
    found["adam"] = [float(values["step"]) for values in state.values()]
    return found


def check_gradients_that_come_otherwise(inputs, mine):
    """By a closure; of a layer that is unfrozen; of a group that is added later."""
    net, alone = model(), model()
    for one, optimizer, given in (
            (net, hvd.DistributedOptimizer(torch.optim.SGD(net[2].parameters(), 0.05)), mine),
            (alone, torch.optim.SGD(alone[2].parameters(), 0.05), inputs)):
        one[0].bias.requires_grad_(False)
        optimizer.add_param_group({"params": list(one[0].parameters())})
        for step, batch in enumerate(given):
            one[0].bias.requires_grad_(step > 0)

            def closure(one=one, batch=batch, optimizer=optimizer):
                optimizer.zero_grad()
                loss = one(batch).square().mean()
                loss.backward()
                return loss
            optimizer.step(closure)
    for own, wanted in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, wanted)


def layers():
    """Batch normalization and sparse gradients are those of one process with all data."""
    check_batch_norm()
    words = torch.tensor([[1, 2, 2], [5, 1, 9]])
    check_gradients_of_a_new_optimizer()
    for made, options in ((torch.optim.SGD, {}), (torch.optim.SparseAdam, {}),
                          (torch.optim.SparseAdam, {"sparse_as_dense": True})):
        nets = []
        for batch in (words[hvd.rank():hvd.rank() + 1], words):
            torch.manual_seed(3)
            nets.append(torch.nn.Embedding(10, 4, sparse=True))
            optimizer = made(nets[-1].parameters(), 0.1)
            if len(batch) == 1:
                optimizer = hvd.DistributedOptimizer(optimizer, **options)
            for _ in range(3):
                optimizer.zero_grad()
                nets[-1](batch).square().mean().backward()
                optimizer.step()
        torch.testing.assert_close(nets[0].weight, nets[1].weight)
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1))
    names = [optimizer._parameter_names[own] for own in net.parameters()]
    assert len(set(names)) == 4
    assert hvd.allgather_object(names) == [names] * hvd.size()
    net(torch.ones(1, 10)).sum().backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    return [str(one.message) for one in caught] + [refused(call, ValueError) for call in (
        lambda: hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1),
                                         backward_passes_per_step=0),
        lambda: hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), groups=-1),
        lambda: hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1),
                                         groups=[[net[0].bias], [net[0].bias]]))]


def optimizers():
    """Sums, groups of one's own and sets of ranks, in an optimizer; calls that are looked at."""
    rank, ranks = hvd.rank(), hvd.size()
    pair = hvd.add_process_set([0, ranks - 1])
    found = {}
    for case, options in {"sum": {"op": hvd.Sum}, "set": {"process_set": pair},
                          "listed": {"groups": "biases"}}.items():
        net, alone = model(), model()
        if "groups" in options:
            options["groups"] = [[net[0].bias, net[2].bias]]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.01),
                                             named_parameters=net.named_parameters(), **options)
        if options.get("process_set", hvd.global_process_set).included():
            train(net, optimizer, [part[rank::ranks] for part in batches(4, 8 * ranks)])
        members = range(ranks) if case != "set" else pair.ranks
        scale = len(members) if case == "sum" else 1
        for batch in batches(4, 8 * ranks):
            alone.zero_grad()
            for member in members:
                loss = alone(batch[member::ranks]).square().mean()
                (scale * loss / len(members)).backward()
            with torch.no_grad():
                for own in alone.parameters():
                    own.sub_(0.01 * own.grad)
        if options.get("process_set", hvd.global_process_set).included():
            for own, wanted in zip(net.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(own, wanted)
        found[case] = weights(net)
    handle = hvd.allreduce_async(torch.ones(3), name="looked at")
    while not hvd.poll(handle):
        time.sleep(0)
    assert hvd.synchronize(handle).tolist() == [1] * 3
    found["refused"] = [
        refused(lambda: hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1),
                                                 op=hvd.Adasum), NotImplementedError),
        refused(lambda: hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), op=hvd.Sum,
                                                 gradient_predivide_factor=2.0), ValueError),
        refused(lambda: hvd.synchronize(handle), ValueError).replace(str(handle), "N")]
    return found


def check_gradients_of_a_new_optimizer():
    """Its state's broadcast gives zeros to who has no gradient, and leaves the others alone."""
    net = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 1))
    net[1].bias.requires_grad_(False)
    for made, model_of_it, sparse in ((torch.optim.SGD, net, True), (torch.optim.SGD, None, False),
                                      (torch.optim.SparseAdam, None, True)):
        net.zero_grad()
        before = [own.detach().clone() for own in net.parameters()]
        chosen = net if made is torch.optim.SGD else net[0]
        optimizer = hvd.DistributedOptimizer(made(chosen.parameters(), 0.1))
        hvd.broadcast_optimizer_state(optimizer, 0, model_of_it)
        assert net[0].weight.grad.is_sparse == sparse
        assert not net[0].weight.grad.to_dense().any()
        if made is torch.optim.SGD:
            assert net[1].weight.grad.tolist() == [[0.0, 0.0]]
        assert net[1].bias.grad is None
        for own, wanted in zip(net.parameters(), before, strict=True):
            assert (own == wanted).all()
    net.zero_grad()
    net[1].weight.grad = torch.ones(1, 2)
    hvd.broadcast_optimizer_state(torch.optim.SGD(net.parameters(), 0.1), 0)
    assert net[1].weight.grad.tolist() == [[1.0, 1.0]]


def check_batch_norm():
    torch.manual_seed(4)
    whole = 1000 + torch.randn(7, 3, 5)  # a mean that would drown the variance in float32 squares
    mine = (whole[:4], whole[4:])[hvd.rank()]
    for momentum in (0.1, None):
        layers, outputs, inputs = [], [], []
        for data, kind in ((mine, hvd.SyncBatchNorm), (whole, torch.nn.BatchNorm1d)):
            layers.append(kind(3, momentum=momentum).double())
            inputs.append(data.double().requires_grad_())
            outputs += [layers[-1](inputs[-1]) for _ in range(2)]
            (outputs[-1] ** 3).sum().backward()
        own = slice(0, 4) if hvd.rank() == 0 else slice(4, 7)
        torch.testing.assert_close(outputs[1], outputs[3][own])
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad[own])
        for name, value in layers[1].state_dict().items():
            torch.testing.assert_close(layers[0].state_dict()[name], value)
        weight = hvd.allreduce(layers[0].weight.grad, op=hvd.Sum)
        torch.testing.assert_close(weight, layers[1].weight.grad)
        torch.testing.assert_close(layers[0].eval()(inputs[0]), layers[1].eval()(inputs[0]))
    assert hvd.SyncBatchNorm(3)(mine.float()).dtype == torch.float32


def sparse():
    """Train with a fifth of the gradients, the rest later, and go on from what is left."""
    rank, ranks = hvd.rank(), hvd.size()
    inputs = batches(30, 8 * ranks)
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.05),
                                         named_parameters=net.named_parameters())
    for at, batch in enumerate(inputs):
        if at == 15:
            kept = optimizer.light_state_dict()
            hvd.shutdown()
            hvd.init()
            optimizer.load_light_state_dict(kept)
        train(net, optimizer, [batch[8 * rank:8 * (rank + 1)]])
    with torch.no_grad():
        losses = [float(one(inputs[-1]).square().mean()) for one in (model(), net)]
    left = optimizer.light_state_dict()
    return {"weights": weights(net), "losses": losses, "left": sorted(left),
            "error": sum(float(one.abs().sum()) for one in left.values())}


def again():
    """Leave and come again, after a lost group, too; what was made before the first stays good."""
    rank, ranks = hvd.rank(), hvd.size()
    net, pair = model(), hvd.ProcessSet([0, ranks - 1])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.05),
                                         named_parameters=net.named_parameters())
    for lost in (False, True):
        if lost:
            lose_group_once()
        left = [hvd.allreduce_async(torch.ones(1), name="left")] if rank == 0 else []
        hvd.shutdown()
        found = [refused(hvd.rank, ValueError), *(
            refused(lambda one=one: hvd.synchronize(one), hvd.HorovodInternalError)
            for one in left)]
        assert ("has been shut down" in found[-1]) == (rank == 0)
        assert found[0] == "Horovod has not been initialized; use hvd.init()."
        hvd.init(process_sets=[pair])
        assert (hvd.rank(), hvd.size()) == (rank, ranks)
        if pair.included():
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=pair).item() == 2
        train(net, optimizer, [part[rank::ranks] for part in batches(2, 8 * ranks)])
    alone = model()
    train(alone, torch.optim.SGD(alone.parameters(), 0.05), 2 * batches(2, 8 * ranks))
    for own, wanted in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, wanted)
    return "right"


def lose_group_once():
    """All ranks lose their group, and `hvd.elastic.run` makes another."""
    resets = []
    state = hvd.elastic.ObjectState()
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @hvd.elastic.run
    def go(state):
        if not resets:
            hvd.barrier()  # each rank is within `run` when another one loses the group
            hvd.global_process_set.runtime.group.abort("for the test")
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
    assert go(state) == hvd.size()
    assert resets == [hvd.size()]


def sets():
    """Two sets of ranks at once, and ranks with less data than others."""
    rank, ranks = hvd.rank(), hvd.size()
    pair, rest = hvd.add_process_set([0, ranks - 1]), hvd.add_process_set(range(1, ranks))
    handles = [hvd.allreduce_async(torch.tensor([float(rank)]), name="own", op=hvd.Sum,
                                   process_set=one) for one in (rest, pair) if one.included()]
    found = [hvd.synchronize(handle).item() for handle in handles]
    wanted = [float(sum(one.ranks)) for one in (rest, pair) if one.included()]
    assert found == wanted
    outside = rest if rank == 0 else pair
    if not outside.included():
        assert "is not in the process set" in refused(
            lambda: hvd.allreduce(torch.ones(1), process_set=outside), ValueError)
    assert hvd.remove_process_set(pair)
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.05),
                                         named_parameters=net.named_parameters())
    train(net, optimizer, batches(3 + 2 * rank, 8))  # rank 0 joins first
    assert hvd.join() == ranks - 1
    for _ in range(rank):  # without a name: who joins first has counted fewer of them
        hvd.allreduce(torch.ones(1))
    last = hvd.join()
    return [last, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()]


def killed():
    """The last rank ends without a word in the middle of calls."""
    for at in range(1000):
        if hvd.rank() == hvd.size() - 1 and at == 20:
            os._exit(9)
        began = time.monotonic()
        try:
            hvd.allreduce(torch.ones(1000), name="data")
        except hvd.HorovodInternalError as error:
            return {"error": str(error), "seconds": time.monotonic() - began}
    return "it was not noticed"


def elastic():
    """Rank 1 dies in its second epoch; or, where nobody may die, a group is lost once."""
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.01 * hvd.size()),
                                         named_parameters=net.named_parameters())
    sampler = hvd.elastic.ElasticSampler(range(96), shuffle=True)
    state = hvd.elastic.TorchState(model=net, optimizer=optimizer, sampler=sampler, epoch=0,
                                   batch=0, log=[])
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    resets, number = [], hvd.rank()
    inputs = torch.cat(batches(12, 8))

    @hvd.elastic.run
    def go(state):
        while state.epoch < 3:
            while state.sampler.get_indices(0, 4):
                if state.epoch == 1 and len(state.log) == 13 and not resets and number == 1:
                    lose()
                mine = state.sampler.get_indices(0, 4)
                optimizer.zero_grad()
                net(inputs[mine]).square().mean().backward()
                optimizer.step()
                state.sampler.record_indices(mine)
                state.log.append(hvd.size())
                # All samples of this step are done before it is committed.
                state.sampler.merge(hvd.allgather_object(state.sampler.state_dict()))
                state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)

    def lose():
        if "HARP_ELASTIC" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.global_process_set.runtime.group.abort("for the test")
        time.sleep(0)
    go(state)
    return {"number": number, "rank": hvd.rank(), "size": hvd.size(), "log": state.log,
            "resets": resets, "weights": weights(net), "epoch": state.epoch}


def growing():
    """A slot is added after three steps, and taken away after three more."""
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.01, momentum=0.9),
                                         named_parameters=net.named_parameters())
    state = hvd.elastic.TorchState(model=net, optimizer=optimizer, steps=0, sizes=[])
    inputs, hosts = batches(1, 8)[0], Path(os.environ["HOSTS"])

    @hvd.elastic.run
    def go(state):
        while [size for size, _ in state.sizes] != [2, 3, 2] or state.sizes[-1][1] < 3:
            train(net, optimizer, [inputs + hvd.rank()])
            if not state.sizes or state.sizes[-1][0] != hvd.size():
                state.sizes.append([hvd.size(), 0])
            state.sizes[-1][1] += 1
            state.steps += 1
            if hvd.rank() == 0 and state.sizes[-1][1] == 3:
                hosts.write_text(f"localhost:{5 - hvd.size()}\n")
            state.commit()
    go(state)
    return {"sizes": [size for size, _ in state.sizes], "steps": state.steps,
            "counted": sum(count for _, count in state.sizes), "weights": weights(net),
            "local": [hvd.local_rank(), hvd.local_size()]}


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    hvd.init()
    print(json.dumps(globals()[sys.argv[1]]()))
    hvd.shutdown()
