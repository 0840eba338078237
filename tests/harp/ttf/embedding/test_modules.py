"""Modules train as nn.Embedding and nn.EmbeddingBag do with torch's optimizers for sparse rows."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from torch import nn

from harp.ttf.embedding import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    DynamicEmbedding,
    DynamicEmbeddingBag,
    EmbeddingCollection,
    TableOptimizer,
)
from harp.ttf.embedding.table import HEAD
from tests.support.levels import each_once

DIM, IDS = 6, 40
FAR = (torch.arange(IDS) - 20) * 2 ** 40 + 7
"""The dynamic module's id for each dense one."""

PAIRS = {
    "sgd": (SGD(lr=0.03), lambda p: torch.optim.SGD(p, lr=0.03)),
    "adagrad": (Adagrad(lr=0.03, initial=0.1),
                lambda p: torch.optim.Adagrad(p, lr=0.03, initial_accumulator_value=0.1)),
    "adam": (Adam(lr=0.05, betas=(0.8, 0.95)),
             lambda p: torch.optim.SparseAdam(p, lr=0.05, betas=(0.8, 0.95))),
}


def twins(name, mode="sum", **more):
    """A dynamic bag, torch's with the same rows, and their optimizers."""
    ours, theirs = PAIRS[name]
    bag = DynamicEmbeddingBag(DIM, mode=mode, optimizer=ours, bound=0.5, **more)
    padding = None if more.get("padding_idx") is None else FAR.tolist().index(more["padding_idx"])
    dense = nn.EmbeddingBag(IDS, DIM, mode=mode, sparse=mode != "max", padding_idx=padding)
    single = DynamicEmbedding(DIM, bound=0.5)
    dense.weight.data = single(FAR).detach().clone()
    return bag, TableOptimizer(bag), dense, theirs(list(dense.parameters()))


def batch(seed):
    """Ids with offsets, some bags empty, and a weight for each id."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, IDS, (50,), generator=generator)
    offsets = torch.randint(0, 51, (12,), generator=generator).sort().values
    offsets[0] = 0
    return ids, offsets, torch.rand(50, generator=generator)


def loss_of(rows):
    return (rows * torch.arange(rows.numel()).reshape(rows.shape).cos()).sum() + rows.pow(2).sum()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's Adagrad sets this off
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("name", PAIRS)
def test_training_equals_that_of_torch(name, mode):
    bag, ours, dense, theirs = twins(name, mode)
    for seed in range(20):
        ids, offsets, weights = batch(seed)
        more = {"per_sample_weights": weights} if mode == "sum" else {}
        for rows, optimizer in ((bag(FAR[ids], offsets, **more), ours),
                                (dense(ids, offsets, **more), theirs)):
            optimizer.zero_grad()
            loss_of(rows).backward()
            optimizer.step()
    got = DynamicEmbeddingBag.forward(bag, FAR.reshape(-1, 1))
    torch.testing.assert_close(got, dense.weight, rtol=0, atol=1e-6)
    assert bag.table.rows <= IDS


LISTS = {
    "empty bags": (10, [0, 0, 3, 3, 10]), "no ids": (0, [0, 0]), "one bag": (10, [0]),
    "no bags": (0, []), "a bag for each id": (6, [0, 1, 2, 3, 4, 5]),
    "a bag of padding": (6, [0, 2, 4]),
}


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mode", ["sum", "weighted", "learned", "mean", "max"])
def test_lists_with_offsets_are_those_of_torch(mode, padded, last, kind):
    reduction = mode if mode in ("mean", "max") else "sum"
    for name, (n, offsets) in LISTS.items():
        more = {"padding_idx": int(FAR[3])} if padded else {}
        bag, ours, dense, _ = twins("sgd", reduction, **more)
        bag.include_last_offset = dense.include_last_offset = last
        theirs = torch.optim.SGD(dense.parameters(), lr=0.03)
        ids = torch.randint(0, IDS, (n,), generator=torch.Generator().manual_seed(n))
        ids[2:4] = 3
        places = torch.tensor([*offsets, n] if last else offsets, dtype=kind)
        made = []
        for module, known, optimizer in ((bag, FAR[ids], ours), (dense, ids, theirs)):
            weights = torch.linspace(0.1, 1, n).requires_grad_(mode == "learned")
            rows = module(known, places if module is bag else places.long(),
                          weights if mode in ("weighted", "learned") else None)
            loss_of(rows).backward()
            optimizer.step()
            made.append((rows, weights.grad))
        made.append((bag(FAR.reshape(-1, 1)), dense(torch.arange(IDS).reshape(-1, 1))))
        for mine, other in (*zip(*made[:2], strict=True), made[2]):
            assert (mine is None) == (other is None), name
            if mine is not None:
                torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)


def test_a_maximum_that_is_not_a_number_is_seen():
    bag = DynamicEmbeddingBag(1, mode="max")
    head = np.zeros(1, dtype=HEAD)
    bag.table.write(head, np.full((1, 1), np.nan, dtype=np.float32))
    assert bag(torch.tensor([0, 5]), torch.tensor([0])).isnan()


@pytest.mark.parametrize("compiled", [False, True])
def test_ids_in_two_dimensions_and_padding(compiled):
    bag, ours, dense, theirs = twins("sgd", "mean", padding_idx=int(FAR[3]))
    call = torch.compile(bag, backend="aot_eager") if compiled else bag
    for seed in range(5):
        ids = batch(seed)[0].reshape(10, 5)
        torch.testing.assert_close(call(FAR[ids]), dense(ids))
        loss_of(call(FAR[ids])).backward()
        loss_of(dense(ids)).backward()
        ours.step(), theirs.step()
        ours.zero_grad(), theirs.zero_grad()
    assert int(FAR[3]) not in bag.changed()


def test_the_maximum_and_weights_that_are_learned():
    bag, ours, dense, _ = twins("sgd", "max")
    ids, offsets, weights = batch(1)
    theirs = torch.optim.SGD(dense.parameters(), lr=0.03)
    for rows, optimizer in ((bag(FAR[ids], offsets), ours), (dense(ids, offsets), theirs)):
        loss_of(rows).backward()
        optimizer.step()
    torch.testing.assert_close(bag(FAR[ids], offsets), dense(ids, offsets))
    bag, _, dense, _ = twins("sgd", "sum")
    grads = []
    for module, known in ((bag, FAR[ids]), (dense, ids)):
        weight = weights.clone().requires_grad_()
        loss_of(module(known, offsets, per_sample_weights=weight)).backward()
        grads.append(weight.grad)
    torch.testing.assert_close(*grads)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = DynamicEmbeddingBag(DIM, optimizer=Adam(lr=0.01))
        self.top = nn.Linear(DIM, 1)
        nn.init.constant_(self.top.weight, 0.3)
        nn.init.zeros_(self.top.bias)

    def forward(self, ids):
        return self.top(self.bag(ids)).squeeze(1)


def trained(model, steps=3, **autocast):
    dense = torch.optim.SGD(model.top.parameters(), lr=0.1)
    sparse = TableOptimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=bool(autocast))
    for seed in range(steps):
        ids = batch(seed)[0].reshape(10, 5)
        with torch.autocast("cpu", enabled=bool(autocast), **autocast):
            loss = (model(ids).float() - ids.float().mean(1) / IDS).pow(2).mean()
        scaler.scale(loss).backward()
        for optimizer in (dense, sparse):
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
    return model.bag(torch.arange(IDS).reshape(-1, 1)).detach()


def test_autocast_and_a_scale_train_alike():
    torch.testing.assert_close(trained(Model(), dtype=torch.bfloat16), trained(Model()),
                               rtol=0.05, atol=2e-3)


def test_a_scheduler_sets_the_rate():
    bag = DynamicEmbeddingBag(1, mode="sum", optimizer=SGD(lr=1.0))
    optimizer = TableOptimizer(bag)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    before = bag(torch.tensor([[7]])).item()
    for _ in range(2):
        bag(torch.tensor([[7]])).sum().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    assert bag(torch.tensor([[7]])).item() == pytest.approx(before - 1.5)


def test_gradients_of_several_batches_wait_for_one_step():
    ids = torch.arange(8).reshape(4, 2)
    rows = []
    for parts in (ids.split(1), [ids]):
        bag = DynamicEmbeddingBag(DIM, mode="sum", optimizer=Adam(lr=0.1))
        optimizer = TableOptimizer(bag)
        for part in parts:
            bag(part).sum().backward()
        optimizer.step()
        rows.append(bag(ids))
    assert torch.equal(*rows)


def test_values_that_are_not_finite_change_no_table():
    model = EmbeddingCollection({name: DynamicEmbeddingBag(2, mode="sum", optimizer=SGD(lr=1))
                                 for name in "ab"})
    optimizer = TableOptimizer(model)
    ids = torch.tensor([[1], [2]])
    rows = model({"a": ids, "b": ids})
    (rows["a"] * torch.tensor([1.0, float("nan")])).sum().backward()
    with pytest.raises(FloatingPointError, match="is not finite: no row was changed"):
        optimizer.step()
    optimizer.zero_grad()
    assert [table.rows for table in model.tables] == [0, 0]
    (model({"a": ids, "b": ids})["b"] * 3e38).sum().backward()
    (model({"a": ids, "b": ids})["b"] * 3e38).sum().backward()
    with pytest.raises(FloatingPointError, match="sum of an id's gradients is not finite"):
        optimizer.step()
    assert torch.equal(model({"a": ids, "b": ids})["b"], rows["b"])


def test_a_scaler_skips_a_step_that_is_not_finite():
    bag = DynamicEmbeddingBag(2, mode="sum", optimizer=SGD(lr=1))
    top = nn.Linear(2, 1)
    ids = torch.tensor([[1], [2]])
    before = bag(ids).detach()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 120)
    scaler.scale((top(bag(ids)) * 1e30).sum()).backward()
    dense, sparse = torch.optim.SGD(top.parameters()), TableOptimizer(bag)
    scaler.step(dense), scaler.step(sparse), scaler.update()
    assert torch.equal(bag(ids), before)
    assert scaler.get_scale() == 2.0 ** 119


def test_a_scale_that_was_taken_back_already_is_refused():
    bag = DynamicEmbeddingBag(2, mode="sum")
    scaler, sparse = torch.amp.GradScaler("cpu"), TableOptimizer(bag)
    scaler.scale(bag(torch.tensor([[1]])).sum()).backward()
    scaler.unscale_(sparse)
    with pytest.raises(RuntimeError, match="call it with the dense one only"):
        scaler.step(sparse)


def test_a_collection_gives_what_its_bags_give():
    bags = {"user": DynamicEmbeddingBag(4, mode="sum"), "item": DynamicEmbeddingBag(3, seed=1)}
    alone = {"user": DynamicEmbeddingBag(4, mode="sum"), "item": DynamicEmbeddingBag(3, seed=1)}
    model = EmbeddingCollection(bags)
    ids, offsets, weights = batch(4)
    given = {"item": torch.randint(0, 9, (12, 2)), "user": (ids, offsets, weights)}
    optimizers = [TableOptimizer(model), *map(TableOptimizer, alone.values())]
    for _ in range(3):
        rows = model(given)
        expected = {"user": alone["user"](ids, offsets, weights),
                    "item": alone["item"](given["item"])}
        for name in bags:
            assert torch.equal(rows[name], expected[name])
            loss_of(rows[name]).backward(retain_graph=True)
            loss_of(expected[name]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert len(list(model.parameters())) == 1


class OneBag(nn.Module):
    def __init__(self, made):
        super().__init__()
        self.rows, self.head = made, nn.Linear(8, 1)

    def forward(self, ids):
        found = self.rows({"one": ids})["one"] if isinstance(self.rows, EmbeddingCollection) else (
            self.rows(ids))
        return self.head(found)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler imports torch.jit
@pytest.mark.parametrize(("made", "dtype", "compiled"), each_once([
    lambda: DynamicEmbedding(8), lambda: DynamicEmbeddingBag(8),
    lambda: DynamicEmbeddingBag(8, mode="max"),
    lambda: EmbeddingCollection({"one": DynamicEmbeddingBag(8)})],
    [torch.float64, torch.bfloat16, torch.float16], [False, True]))
def test_a_model_of_another_dtype_gives_results_in_it_and_trains(made, dtype, compiled):
    torch._dynamo.reset()
    ids = torch.arange(6).reshape(3, 2)
    torch.manual_seed(0)
    model = OneBag(made())
    model.head.weight.data.copy_(model.head.weight.to(torch.bfloat16))  # exact in each dtype
    first = model(ids)
    first.sum().backward()
    torch.manual_seed(0)
    other = OneBag(made()).to(dtype)
    other.head.weight.data.copy_(model.head.weight.data)
    call = torch.compile(other, backend="aot_eager", fullgraph=True) if compiled else other
    found = call(ids)
    assert found.dtype is dtype
    torch.testing.assert_close(found.float(), first, rtol=0, atol=1e-2)
    found.sum().backward()
    assert other.rows.anchor.grad.dtype is dtype
    for each in (model, other):
        TableOptimizer(each).step()
    torch.testing.assert_close(other(ids).float(), model(ids), rtol=0, atol=1e-2)
    assert all(table.rows == 6 for table in other.rows.tables)


def test_weights_of_a_bag_may_have_the_dtype_of_its_module():
    bag = DynamicEmbeddingBag(8, mode="sum").double()
    weights = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    found = bag(torch.arange(6).reshape(3, 2), per_sample_weights=weights)
    found.sum().backward()
    assert found.dtype is weights.grad.dtype is torch.float64


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler imports torch.jit
def test_batches_of_many_sizes_are_compiled_twice_and_without_a_break():
    torch._dynamo.reset()
    model = EmbeddingCollection({name: DynamicEmbeddingBag(4, mode="sum") for name in "ab"})
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    call = torch.compile(model, backend=counter, fullgraph=True)
    for size in (8, 16, 24, 32, 9):
        ids = torch.arange(size * 3).reshape(size, 3) * 2 ** 40
        rows, expected = call({"a": ids, "b": -ids}), model({"a": ids, "b": -ids})
        assert all(torch.equal(rows[name], expected[name]) for name in "ab")
        (rows["a"].sum() + rows["b"].sum()).backward()
    assert counter.frame_count == 2
    assert [table.rows for table in model.tables] == [96, 96]


def test_a_feature_that_goes_takes_no_gradient_along():
    bag = DynamicEmbeddingBag(4, optimizer=SGD(1.0), bound=0)
    model = EmbeddingCollection({"a": DynamicEmbeddingBag(4, optimizer=SGD(1.0)), "b": bag})
    optimizer, ids = TableOptimizer(model), torch.tensor([[1]])
    model({"a": ids, "b": ids})["b"].sum().backward()
    model.add("b", model.drop("b"))
    optimizer.zero_grad()
    model({"a": ids, "b": ids})["b"].sum().backward()
    optimizer.step()
    assert torch.equal(bag(ids), torch.full((1, 4), -1.0))


def test_a_collection_without_features_gives_none():
    model = EmbeddingCollection({"a": DynamicEmbeddingBag(4)})
    model.drop("a")
    model.prefetch({})
    assert model({}) == EmbeddingCollection()({}) == {}


def test_features_come_and_go():
    model = EmbeddingCollection({"a": DynamicEmbeddingBag(4), "b": DynamicEmbeddingBag(3)})
    ids = torch.arange(6).reshape(3, 2)
    before = model({"a": ids, "b": ids})["a"]
    model.add("c", DynamicEmbeddingBag(2))
    model.drop("b")
    rows = model({"a": ids, "c": ids})
    assert rows["c"].shape == (3, 2)
    assert torch.equal(rows["a"], before)
    with pytest.raises(ValueError, match="features a: there are a, c"):
        model({"a": ids})


@pytest.mark.parametrize(("call", "sentence"), [
    (lambda: DynamicEmbedding(4)(torch.rand(3)), r"ids are of torch.float32: ids are integers"),
    (lambda: DynamicEmbedding(0), "dim=0: an integer from 1 to 4096"),
    (lambda: DynamicEmbeddingBag(4, mode="maen"), "mode='maen': sum, mean, max; did you mean"),
    (lambda: DynamicEmbedding(4, admit=0), "admit=0: an integer from 1 to 255"),
    (lambda: DynamicEmbedding(4, expect=0), "expect=0: an integer from 1"),
    (lambda: DynamicEmbedding(4).evict(most=0), "most=0: an integer of at least 1"),
    (lambda: DynamicEmbedding(4).evict(idle=1.5), "idle=1.5: an integer of at least 0"),
    (lambda: DynamicEmbedding(4).evict(norm="3"), "norm='3': a number of at least 0"),
    (lambda: DynamicEmbedding(4)([1, 2]), "ids are a list: ids are a tensor, of torch.int64"),
    (lambda: DynamicEmbedding(4, bound=float("nan")), "bound=nan: a number from 0 to"),
    (lambda: DynamicEmbedding(4, bound=-1), "bound=-1: a number from 0 to"),
    (lambda: DynamicEmbedding(4, seed="a"), "seed='a': an integer"),
    (lambda: DynamicEmbedding(4, optimizer=Adam), r"optimizer=.*Adam.*: SGD\(\), Adagrad\(\), Ad"),
    (lambda: DynamicEmbedding(4, optimizer="adam"), r"optimizer='adam': SGD\(\), Adagrad"),
    (lambda: Adam(lr=-1), "Adam: lr=-1: a number of at least 0"),
    (lambda: Adam(betas=(0.9, 1.0)), r"Adam: betas=\(0.9, 1.0\): two numbers from 0 to below 1"),
    (lambda: SGD(lr=float("nan")), "SGD: lr=nan: a number of at least 0"),
    (lambda: Adagrad(eps="1"), "Adagrad: eps='1': a number"),
    (lambda: FTRL(lr=0), "FTRL: lr=0: a number of at least"),
    (lambda: copy.deepcopy(nn.Sequential(DynamicEmbedding(4))), "neither copied nor pickled: save"),
    (lambda: pickle.dumps(DynamicEmbedding(4)), "neither copied nor pickled: save"),
    (lambda: EmbeddingCollection({"items": DynamicEmbeddingBag(2)}),
     "feature 'items': torch's modules allow no such name; 'items_' is possible"),
    (lambda: EmbeddingCollection({"a.b": DynamicEmbeddingBag(2)}), "'a_b_' is possible"),
    (lambda: EmbeddingCollection({"a": DynamicEmbeddingBag(2)})({}), "features none: there are a"),
    (lambda: DynamicEmbeddingBag(4)(torch.arange(4), torch.tensor([0, 3, 2])),
     r"offsets\[2\] is 2: offsets begin with 0, never fall, and end at the number of ids, .* 4"),
    (lambda: DynamicEmbeddingBag(4)(torch.arange(4), torch.tensor([1, 3])), r"offsets\[0\] is 1"),
    (lambda: DynamicEmbeddingBag(4)(torch.arange(4), torch.tensor([0, 5])), r"offsets\[1\] is 5"),
    (lambda: DynamicEmbeddingBag(4, include_last_offset=True)(torch.arange(4), torch.arange(0)),
     "offsets are empty: with include_last_offset there is at least one"),
    (lambda: DynamicEmbeddingBag(4)(torch.arange(4)), "ids of 1 dimensions: two, or one with"),
    (lambda: DynamicEmbeddingBag(4)(torch.ones(2, 2).long(), None, torch.ones(2, 2)),
     "in mode 'mean': one for each id, in mode 'sum'"),
    (lambda: TableOptimizer(EmbeddingCollection()), "EmbeddingCollection has no dynamic embedding"),
    (lambda: TableOptimizer(nn.Linear(2, 2)), "Linear has no dynamic embedding"),
    (lambda: EmbeddingCollection({"user": DynamicEmbeddingBag(2)}).drop("usr"),
     "there is no feature 'usr'; did you mean 'user'"),
])
def test_a_mistake_is_one_sentence(call, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_collection_gives_the_same_for_plain_ids_and_for_others():
    many = EmbeddingCollection({name: DynamicEmbeddingBag(dim, mode=mode, padding_idx=padding)
                                for name, dim, mode, padding in (("a", 3, "sum", None),
                                                                 ("b", 16, "mean", 5))})
    optimizer = TableOptimizer(many)
    plain = {"a": torch.tensor([[1, 2], [2, 2]]), "b": torch.tensor([[5, 7, 7], [5, 5, 5]])}
    others = {name: (ids.reshape(-1).int(), torch.arange(0, ids.numel(), ids.shape[1]))
              for name, ids in plain.items()}
    by_turns = (plain, others, plain, {"a": plain["a"], "b": others["b"]})
    for given in by_turns:
        rows = many(given)
        sum(row.square().sum() for row in rows.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
        answers = [many(other) for other in by_turns]
        for answer in answers:
            assert all(torch.equal(answer[name], answers[0][name]) for name in answer)
    assert [bag.table.rows for bag in many.bags.values()] == [2, 1]
