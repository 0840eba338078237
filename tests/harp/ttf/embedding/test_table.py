"""The table against a dictionary, and its optimizers against the papers' formulas."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from harp.ttf.embedding import SGD, DynamicEmbedding, TableOptimizer
from harp.ttf.embedding.checkpoint import load, save
from harp.ttf.embedding.table import HEAD, Table, distinct, owners
from tests.support import PATIENCE_S
from tests.support.levels import long

DIM = 3


def many(seed, n):
    """Ids of a batch: some that come often, and some anywhere."""
    random = np.random.default_rng(seed)
    return [*random.zipf(1.2, n).astype(np.int64).tolist(),
            *random.integers(-2 ** 63, 2 ** 63 - 1, n // 10).tolist()]


IDS = st.one_of(
    st.lists(st.one_of(st.integers(-9, 9), st.integers(-2 ** 63, 2 ** 63 - 1)), min_size=1,
             max_size=40),
    st.builds(many, st.integers(0, 2 ** 32), st.integers(1, 3000)))


class AgainstDict(RuleBasedStateMachine):
    """A module that is trained, cut and copied, beside a dictionary that has each row."""

    operations = 0
    """Ids that were looked up, trained or removed, by all machines."""

    @initialize(shards=st.integers(1, 3))
    def begin(self, shards):
        self.module = self.made(shards)
        self.first = self.made(1)  # is never trained
        self.optimizer = TableOptimizer(self.module)
        self.rows, self.clock = {}, 0
        self.folder = tempfile.TemporaryDirectory()

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @staticmethod
    def made(shards):
        return DynamicEmbedding(DIM, optimizer=SGD(lr=1.0), bound=0.5, seed=3, shards=shards)

    def expected(self, ids):
        rows = self.first(torch.tensor(ids)).detach().numpy()
        for place, key in enumerate(ids):
            if key in self.rows:
                rows[place] = self.rows[key][0]
        return rows

    @rule(ids=IDS)
    def look_up(self, ids):
        AgainstDict.operations += len(ids)
        assert np.array_equal(self.module(torch.tensor(ids)).detach(), self.expected(ids))

    @rule(ids=IDS)
    def train(self, ids):
        AgainstDict.operations += len(ids)
        rows = self.module(torch.tensor(ids))
        gradients = torch.arange(rows.numel()).reshape(rows.shape) % 7.0  # sums are exact
        (rows * gradients).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        keys, places, counts = np.unique(ids, return_inverse=True, return_counts=True)
        sums = np.zeros((len(keys), DIM), dtype=np.float32)
        np.add.at(sums, places, gradients.numpy())
        keys = keys.tolist()
        for key, row, more in zip(keys, self.expected(keys) - sums, counts.tolist(), strict=True):
            self.rows[key] = (row, self.rows.get(key, (None, 0))[1] + more, self.clock)

    @rule(ids=IDS)
    def remove(self, ids):
        AgainstDict.operations += len(ids)
        there = set(ids) & set(self.rows)
        assert self.module.remove(torch.tensor(ids)) == len(there)
        for key in there:
            del self.rows[key]

    @rule()
    def pass_time(self):
        self.clock += 1
        self.module.table.clock = self.clock

    @rule(idle=st.integers(0, 3), below=st.integers(0, 3))
    def evict(self, idle, below):
        going = [key for key, (_, count, used) in self.rows.items()
                 if self.clock - used > idle or count < below]
        assert self.module.evict(idle=idle, below=below) == len(going)
        for key in going:
            del self.rows[key]

    @rule(most=st.integers(1, 30))
    def cap(self, most):
        self.module.evict(most=most)
        order = sorted(self.rows, key=lambda key: (self.rows[key][2], self.rows[key][1], key))
        for key in order[:max(len(order) - most, 0)]:
            del self.rows[key]

    @rule(shards=st.integers(1, 3))
    def copy(self, shards):
        other = self.made(shards)
        for heads, values in self.module.table.read():
            other.table.write(heads, values)
        other.table.clock = self.clock
        self.module, self.optimizer = other, TableOptimizer(other)

    @rule(shards=st.integers(1, 3), delta=st.booleans())
    def save_and_load(self, shards, delta):
        save(self.module, self.folder.name, delta=delta and bool(self.module.table.saved_as))
        other = self.made(shards)
        load(other, self.folder.name)
        assert other.table.clock == self.clock
        self.module, self.optimizer = other, TableOptimizer(other)

    @invariant()
    def same(self):
        if not hasattr(self, "module"):
            return
        heads, values = map(np.concatenate, zip(
            (np.empty(0, HEAD), np.empty((0, DIM), np.float32)), *self.module.table.read(),
            strict=True))
        order, known = np.argsort(heads["key"]), sorted(self.rows)
        assert heads["key"][order].tolist() == known
        rows, counts, used = zip(*map(self.rows.get, known), strict=True) if known else ((),) * 3
        assert np.array_equal(values[order], np.reshape(rows, (-1, DIM)))
        assert heads["count"][order].tolist() == list(counts)
        assert heads["used"][order].tolist() == list(used)


TestQuick = AgainstDict.TestCase
TestQuick.settings = settings(max_examples=25, stateful_step_count=25, deadline=None,
                              suppress_health_check=list(HealthCheck))


class AgainstDictOnDisk(AgainstDict):
    """Most rows are on disk, and some are on their way from it."""

    @staticmethod
    def made(shards):
        return DynamicEmbedding(DIM, optimizer=SGD(lr=1.0), bound=0.5, seed=3, shards=shards,
                                memory_bytes=4 * DIM * 4)

    @rule(ids=IDS)
    def prefetch(self, ids):
        self.module.prefetch(torch.tensor(ids))


TestQuickOnDisk = AgainstDictOnDisk.TestCase
TestQuickOnDisk.settings = TestQuick.settings


@long
@pytest.mark.parametrize("machine", [AgainstDict, AgainstDictOnDisk])
def test_a_million_operations_agree_with_a_dictionary(machine):
    AgainstDict.operations = 0
    run_state_machine_as_test(machine, settings=settings(
        max_examples=200, stateful_step_count=60, deadline=None,
        suppress_health_check=list(HealthCheck)))
    print(f"{AgainstDict.operations} operations")
    assert AgainstDict.operations >= 1_000_000


def test_a_key_is_admitted_at_the_gradient_that_was_asked_for():
    module = DynamicEmbedding(2, optimizer=SGD(lr=1.0), admit=3, bound=0.5)
    step, ids = TableOptimizer(module), torch.tensor([4, 4, 5])
    before = module(ids).detach()
    module(ids).sum().backward()
    step.step()
    assert torch.equal(module(ids), before)
    assert module.table.rows == 0
    step.zero_grad()
    module(ids).sum().backward()
    step.step()
    # Key 4's third gradient and those behind it count; key 5 has had two.
    assert torch.equal(module(ids), before - torch.tensor([[2.0], [2.0], [0.0]]))
    assert module.table.rows == 1


def test_few_keys_are_admitted_too_early():
    module = DynamicEmbedding(1, admit=2, expect=20_000, shards=1)
    module(torch.arange(20_000)).sum().backward()
    assert module.table.rows < 20_000 * 0.05


def test_memory_comes_with_rows_and_goes_with_them():
    module = DynamicEmbedding(8, shards=2)
    empty = module.table.bytes
    ids = torch.arange(200_000) * 2 ** 30
    module(ids).sum().backward()
    TableOptimizer(module).zero_grad()
    full = module.table.bytes
    assert module.remove(ids[1000:]) == 199_000
    rows = module.table.bytes - empty
    assert rows < 0.2 * full + 200_000 * 8 * 4 * 2  # what waited is kept for the next step
    kept = {int(key) for heads, _ in module.table.read() for key in heads["key"]}
    assert kept == set(ids[:1000].tolist())


GROWS_AND_SHRINKS = """
import torch
from pathlib import Path
from harp.ttf.embedding import DynamicEmbedding
from harp.ttf.embedding.table import HEAD
import numpy as np
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
module = DynamicEmbedding(64)
heads, values = np.zeros(1000, dtype=HEAD), np.ones((1000, 64), dtype=np.float32)
module.table.write(heads, values)
begin = resident()
for at in range(0, 400_000, 1000):
    heads["key"] = np.arange(at, at + 1000)
    module.table.write(heads, values)
full = resident()
for at in range(1000, 400_000, 1000):
    module.remove(torch.arange(at, at + 1000))
print((full - begin) / 400_000, (resident() - begin) / (full - begin))
"""


@long
def test_the_kernel_has_the_memory_of_rows_that_went():
    done = subprocess.run([sys.executable, "-c", GROWS_AND_SHRINKS], capture_output=True, text=True,
                          check=True, timeout=PATIENCE_S)
    bytes_a_row, left = map(float, done.stdout.split())
    assert 4 * 64 < bytes_a_row < 1.3 * (8 + 4 * 64)
    assert left < 0.15


def test_keys_are_numbered_by_their_first_appearance():
    keys = np.random.default_rng(3).integers(-50, 50, 1000)
    found, place = distinct(keys)
    assert np.array_equal(found[place], keys)
    assert list(found) == list(dict.fromkeys(keys))


def test_owners_are_equally_loaded():
    for keys in (np.arange(100_000), np.arange(100_000) << 40):
        loads = np.bincount(owners(keys, 4), minlength=4)
        assert loads.max() < 1.03 * loads.min()


def test_rows_go_by_age_and_by_norm():
    module = DynamicEmbedding(2, optimizer=SGD(lr=1.0), bound=0.0)
    step = TableOptimizer(module)
    for day, scale in enumerate((0.1, 5.0, 5.0)):
        module.table.clock = day
        (module(torch.tensor([day])) * scale).sum().backward()
        step.step()
        step.zero_grad()
    assert module.evict(norm=1.0) == 1
    assert module.evict(age=0) == 1
    assert [heads["key"].tolist() for heads, _ in module.table.read()] == [[2]]


def test_a_clock_is_a_number_that_fits():
    with pytest.raises(ValueError, match=r"clock=-1: an integer from 0 to 2\^32 - 1"):
        Table(2, SGD()).clock = -1
