"""Tables with a cap on their memory, beside equal ones without."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from harp.angelptm.cache import StoreError
from harp.ttf.embedding import (
    Adam,
    DynamicEmbedding,
    DynamicEmbeddingBag,
    EmbeddingCollection,
    TableOptimizer,
)
from harp.ttf.embedding.checkpoint import load, save
from tests.support import PATIENCE_S
from tests.support.levels import long

DIM, BATCH, CAP = 8, 200, 1000


def made(**settings):
    return DynamicEmbedding(DIM, optimizer=Adam(lr=0.1), shards=2, **settings)


def capped(**settings):
    return made(memory_bytes=CAP * 3 * DIM * 4, **settings)


def train(module, steps, first=0):
    optimizer, generator = TableOptimizer(module), torch.Generator().manual_seed(first)
    batches = [torch.randint(0, 5000, (BATCH,), generator=generator) for _ in range(steps)]
    for ids, following in zip(batches, [*batches[1:], batches[0]], strict=True):
        rows = module(ids)
        module.prefetch(following)
        (rows * ids[:, None].float().cos()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_training_has_the_bits_of_a_table_in_memory():
    ours, whole = capped(), made()
    for module in (ours, whole):
        train(module, 100)
    assert ours.table.rows == whole.table.rows > 4 * CAP
    assert ours.table.resident <= CAP < whole.table.resident
    ids = torch.arange(5000)
    assert torch.equal(torch.cat([ours(some) for some in ids.split(BATCH)]), whole(ids))


def test_checkpoints_have_the_same_bytes(tmp_path):
    for name, module in (("ours", capped()), ("whole", made())):
        train(module, 60)
        save(module, tmp_path / name)
        train(module, 5, first=9)
        module.remove(torch.arange(0, 5000, 7))
        save(module, tmp_path / name, delta=True)
    files = [[(tmp_path / name / file).read_bytes()
              for [file] in json.loads((tmp_path / name / "latest.json").read_text())["files"]]
             for name in ("ours", "whole")]
    assert len(files[0]) == 2
    assert files[0] == files[1]
    read = capped()
    load(read, tmp_path / "whole")
    assert read.table.resident <= CAP
    ids = torch.arange(5000)
    assert torch.equal(read(ids), module(ids))


def test_removed_rows_give_their_places_on_disk_back():
    module = capped()
    train(module, 60)
    full = module.table.bytes
    for _ in range(5):
        module.remove(torch.arange(5000))
        assert module.table.rows == 0
        train(module, 60)
        assert module.table.bytes < 1.1 * full


def test_a_cap_has_room_for_a_row_of_each_shard():
    with pytest.raises(ValueError, match="memory_bytes=0: an integer of at least 192, a row for"):
        made(memory_bytes=0)


def test_a_folder_that_is_not_there_is_named():
    with pytest.raises(StoreError, match=r"^/nowhere: .* cannot be had on disk: No such file"):
        capped(folder="/nowhere")


FULL_DISK = """
import sys
import torch
from harp.angelptm.cache import StoreError
from harp.ttf.embedding import TableOptimizer
from tests.harp.ttf.embedding.test_disk import BATCH, capped, made
module, whole = capped(folder=sys.argv[1]), made()
ids = torch.arange(8000)
for batch in ids.split(BATCH):
    rows = module.table.rows
    try:
        module(batch).sin().sum().backward()
    except StoreError as error:
        print(error)
        break
    whole(batch).sin().sum().backward()
    TableOptimizer(module).step()
    TableOptimizer(whole).step()
assert module.table.rows == rows > 1000
ours, theirs = ({int(head["key"]): row.tolist() for heads, rows in each.table.read()
                 for head, row in zip(heads, rows)} for each in (module, whole))
assert ours == theirs
"""


@long
def test_a_full_disk_is_named_and_changes_nothing(tmp_path):
    mounted = 'mount -t tmpfs -o size=256k none "$2" && exec "$0" -c "$1" "$2"'
    done = subprocess.run(["unshare", "--mount", "sh", "-c", mounted, sys.executable, FULL_DISK,
                           str(tmp_path)], capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path}: ")
    assert done.stdout.endswith("cannot be had on disk: No space left on device\n")


def test_eviction_knows_rows_on_disk():
    module = capped()
    train(module, 60)
    rows = module.table.rows
    assert module.evict(most=500) == rows - 500
    assert module.table.rows == 500


FULL_FOR_A_LOAD = """
import sys
import torch
from harp.angelptm.cache import StoreError
from harp.ttf.embedding import TableOptimizer
from harp.ttf.embedding.checkpoint import load, save
from tests.harp.ttf.embedding.test_checkpoint import contents
from tests.harp.ttf.embedding.test_disk import capped, made, train
model = torch.nn.ModuleDict({"memory": made(), "disk": capped(folder=sys.argv[1])})
other = torch.nn.ModuleDict({"memory": made(), "disk": made()})
for module in model.values():
    train(module, 20)
train(other["memory"], 5, first=1)
other["disk"](torch.arange(-9000, 3000)).sin().sum().backward()
TableOptimizer(other["disk"]).step()
save(other, sys.argv[2])
before = contents(model)
assert len(before["disk"][2]) > 2000
try:
    load(model, sys.argv[2])
except StoreError as error:
    print(error)
assert contents(model) == before
"""


@long
def test_a_load_that_meets_a_full_disk_changes_no_table(tmp_path):
    mounted = ('mkdir "$2/small" && mount -t tmpfs -o size=1m none "$2/small" && '
               'exec "$0" -c "$1" "$2/small" "$2/saved"')
    done = subprocess.run(["unshare", "--mount", "sh", "-c", mounted, sys.executable,
                           FULL_FOR_A_LOAD, str(tmp_path)], capture_output=True, text=True,
                          check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("cannot be had on disk: No space left on device\n")


@pytest.mark.parametrize("backwards", [False, True])
def test_features_in_any_order_have_their_own_rows(backwards):
    """Calls over several tables have them in an order of their own (Table.address)."""
    def collection(**settings):
        bags = [DynamicEmbeddingBag(DIM, mode="sum", optimizer=Adam(lr=0.1), seed=seed, shards=2,
                                    padding_idx=seed, **settings) for seed in range(4)]
        bags.sort(key=lambda bag: bag.table.address, reverse=backwards)
        return EmbeddingCollection({f"f{bag.table.seed}": bag for bag in bags})

    ours = collection(memory_bytes=50 * 3 * DIM * 4)
    whole = collection()
    for step in range(10):
        ids = {f"f{n}": torch.arange(n + 40 * step, n + 40 * step + 64).reshape(32, 2)
               for n in range(4)}
        for model in (ours, whole):
            rows = model({name: ids[name] for name in model.bags})
            sum((part * (n + 1)).cos().sum()
                for n, (_, part) in enumerate(sorted(rows.items()))).backward()
            TableOptimizer(model).step()
    assert ours.bags["f2"].table.resident <= 128 < ours.bags["f2"].table.rows
    for name, table in ids.items():
        assert torch.equal(ours.bags[name](table), whole.bags[name](table))
    assert not torch.equal(ours.bags["f1"](ids["f1"]), ours.bags["f2"](ids["f1"]))
