"""The look-up as an operator: it changes nothing, and its gradient goes to the tables."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from harp.ttf.embedding import (
    SGD,
    DynamicEmbedding,
    DynamicEmbeddingBag,
    EmbeddingCollection,
    TableOptimizer,
)
from harp.ttf.embedding.operators import discarding, rehearsal
from tests.harp.ttf.embedding.test_modules import DIM, loss_of
from tests.support import PATIENCE_S


def rows_of(module):
    return {int(head["key"]): (int(head["count"]), row.tobytes())
            for heads, rows in module.table.read() for head, row in zip(heads, rows, strict=True)}


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("offsets", "place"), [([0, 3, 2], 2), ([0, 11], 1), ([0, -1], 1),
                                               ([1, 2], 0), ([-1], 0)])
def test_broken_offsets_are_one_sentence_in_every_mode(mode, last, offsets, place):
    bag = DynamicEmbeddingBag(DIM, mode=mode, include_last_offset=last)
    bag(torch.arange(9), torch.tensor([0, 9])).sum().backward()
    TableOptimizer(bag).step()
    before = rows_of(bag)
    with pytest.raises(ValueError, match=rf"^offsets\[{place}\] is {offsets[place]}: offsets "
                                         r"begin with 0, never fall, and end at [^\n]* 10$"):
        bag(torch.arange(10), torch.tensor(offsets)).sum().backward()
    assert rows_of(bag) == before != {}


@pytest.mark.parametrize("call", [
    lambda bag, ids: bag(ids), lambda bag, ids: bag(ids.reshape(-1), torch.tensor([0])),
    lambda bag, ids: bag.remove(ids), lambda bag, ids: bag.prefetch(ids),
    lambda bag, ids: EmbeddingCollection({"a": bag})({"a": ids}),
    lambda bag, ids: EmbeddingCollection({"a": bag}).prefetch({"a": ids})])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bool, torch.complex64])
def test_ids_that_are_no_integers_are_one_sentence_and_change_nothing(call, kind):
    bag = DynamicEmbeddingBag(DIM, mode="sum")
    bag(torch.arange(9).reshape(3, 3)).sum().backward()
    TableOptimizer(bag).step()
    before = rows_of(bag)
    with pytest.raises(TypeError, match=rf"^ids are of {kind}: ids are integers, of torch.int64$"):
        call(bag, torch.ones(2, 2).to(kind))
    assert rows_of(bag) == before != {}


def test_a_look_up_changes_nothing_and_gives_what_training_begins_with():
    one, other = (DynamicEmbedding(DIM, seed=5, shards=shards) for shards in (1, 3))
    ids = torch.tensor([[3, -2 ** 63], [2 ** 63 - 1, 3]])
    rows = one(ids).detach()
    assert rows.shape == (2, 2, DIM)
    assert torch.equal(rows, other(ids.flip(1)).detach().flip(1))
    assert not torch.equal(rows, DynamicEmbedding(DIM, seed=6)(ids))
    assert rows.abs().max() <= 0.01
    assert one.table.rows == 0
    loss_of(one(ids)).backward()
    assert one.table.rows == 3
    assert torch.equal(one(ids), rows)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler imports torch.jit
def test_a_gradient_of_an_operator_that_is_called_twice_counts_twice_when_compiled():
    ids = torch.arange(12).reshape(4, 3)
    after = []
    for compiled in (False, True):
        bag = DynamicEmbeddingBag(DIM, mode="sum", optimizer=SGD(lr=1))

        def twice(ids, bag=bag):
            return bag(ids) + bag(ids)

        call = torch.compile(twice, backend="aot_eager_decomp_partition") if compiled else twice
        call(ids).sum().backward()
        TableOptimizer(bag).step()
        after.append(bag(ids).detach())
    assert torch.equal(*after)


def test_ids_changed_between_look_up_and_backward_are_an_error():
    bag = DynamicEmbeddingBag(4, mode="sum")
    ids = torch.tensor([[1, 2], [3, 4]])
    loss = bag(ids).sum()
    ids[0, 0] = 9
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_a_rehearsal_finds_first_rows_and_leaves_tables_alone():
    bag = DynamicEmbeddingBag(DIM, mode="sum", optimizer=SGD(lr=1), bound=0.5)
    ids, optimizer = torch.arange(12).reshape(4, 3), TableOptimizer(bag)
    first = bag(ids).detach()
    bag(ids).sum().backward()
    optimizer.step()
    trained = bag(ids).detach()
    assert not torch.equal(trained, first)
    with rehearsal():
        found = bag(ids)
        assert torch.equal(found, first)
        found.sum().backward()
    optimizer.step()
    assert torch.equal(bag(ids), trained)


def test_gradients_that_are_discarded_still_show_that_they_are_not_finite():
    bag = DynamicEmbeddingBag(DIM, mode="sum", optimizer=SGD(lr=1))
    ids, optimizer = torch.arange(12).reshape(4, 3), TableOptimizer(bag)
    before = bag(ids).detach()
    for times, finite in ((1.0, True), (float("inf"), False)):
        bag.anchor.grad = None
        with discarding():
            (bag(ids).sum() * times).backward()
        assert bool(bag.anchor.grad.isfinite().all()) == finite
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(bag(ids), before)


BESIDE_TORCH = """
import os, torch
from harp.ttf.embedding import DynamicEmbedding, TableOptimizer
from harp.ttf.embedding.table import HEAD
import numpy as np

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(3)
ids = torch.arange(100_000)
before = threads()
module = DynamicEmbedding(8, shards=3)
module(ids).sum().backward()
TableOptimizer(module).step()
heads = np.zeros(5000, dtype=HEAD)
heads["key"] = np.arange(-5000, 0)
module.table.write(heads, np.ones((5000, 8)))
assert module.table.rows == 105_000
after = threads()
child = os.fork()  # which has none of OpenMP's threads, and would wait for them for ever
if not child:
    with torch.no_grad():
        assert module(ids).shape == (100_000, 8)
    os._exit(threads() != 3)
print(before, after, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_tables_work_in_torchs_threads_and_in_a_forked_process_in_their_own():
    """Threads beside torch's, which look for work for milliseconds, would wait for a CPU."""
    done = subprocess.run([sys.executable, "-c", BESIDE_TORCH], capture_output=True, text=True,
                          check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    before, after, status = map(int, done.stdout.split())
    assert before >= 3
    assert (after, status) == (before, 0)
