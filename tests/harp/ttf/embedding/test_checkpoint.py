"""Checkpoints: bit-equal, full and by deltas, read while they grow, and whole whatever happens."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from harp.angelptm.cache import StoreError
from harp.tensor_files import CheckpointError
from harp.ttf.embedding import (
    SGD,
    Adagrad,
    Adam,
    DynamicEmbedding,
    DynamicEmbeddingBag,
    EmbeddingCollection,
    TableOptimizer,
)
from harp.ttf.embedding.checkpoint import TIMES, Follower, load, save
from harp.ttf.embedding.table import Table
from tests.support import PATIENCE_S, ROOT
from tests.support.killed_saver import kill_after_saves
from tests.support.levels import long, long_except

SAVES_FOR_EVER = """
import sys
from tests.harp.ttf.embedding.test_checkpoint import made, save, train
model = made()
for step in range(10**6):
    train(model, step)
    save(model, sys.argv[1], delta=step % 3 > 0)
    print("saved", flush=True)
"""


def made(shards=1, **more):
    return EmbeddingCollection({
        "a": DynamicEmbeddingBag(4, optimizer=Adam(lr=0.1), shards=shards, **more),
        "b": DynamicEmbeddingBag(3, optimizer=Adam(lr=0.1), seed=2, shards=shards)})


def train(model, step, ids=200):
    optimizer = TableOptimizer(model)
    generator = torch.Generator().manual_seed(step)
    for module in model.bags.values():
        module.table.clock = step
    given = torch.randint(-ids, ids, (20, 3), generator=generator)
    rows = model({"a": given, "b": given + step})
    (rows["a"].sum() + rows["b"].pow(2).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()


def contents(model):
    """All that the tables of a model have, in an order of their own."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, DynamicEmbedding):
            found[name] = (module.table.steps, module.table.clock, {
                int(head["key"]): ([int(head[field]) for field in TIMES], row.tobytes())
                for heads, rows in module.table.read()
                for head, row in zip(heads, rows, strict=True)})
    return found


def test_a_full_checkpoint_has_all_and_training_goes_on_with_the_same_bits(tmp_path):
    model, other = made(), made(shards=3)
    for step in range(4):
        train(model, step)
    save(model, tmp_path)
    train(other, 77)
    load(other, tmp_path)
    assert contents(other) == contents(model)
    for trained in (model, other):
        train(trained, 5)
    assert contents(other) == contents(model)


def test_deltas_have_what_changed_and_what_went(tmp_path):
    model, other = made(), made()
    train(model, 0)
    save(model, tmp_path)
    for step in range(1, 4):
        train(model, step)
        gone = model.bags["a"].evict(idle=1)
        model.bags["b"].remove(torch.arange(-50, 0))
        changed = set(model.bags["a"].changed().tolist())
        number = save(model, tmp_path, delta=True)
        file = load_file(tmp_path / f"{number}.0-of-1.safetensors")
        assert set(file["bags.a.keys"].tolist()) == changed
        assert len(file["bags.a.gone"]) == gone
        assert len(changed) < 61
    load(other, tmp_path)
    assert contents(other) == contents(model)
    train(model, 9)
    save(other, tmp_path, delta=True)
    with pytest.raises(CheckpointError, match="is not the one that these tables were saved to or"):
        save(model, tmp_path, delta=True)


def test_ids_that_go_are_kept_for_a_delta_only(tmp_path):
    """Without a checkpoint there is none to come, and the list would grow for ever."""
    module = DynamicEmbedding(4)
    optimizer, table = TableOptimizer(module), module.table
    for save_first in (False, True):
        module(torch.arange(9)).sum().backward()
        optimizer.step()
        if save_first:
            save(module, tmp_path)
        assert module.remove(torch.arange(5)) == 5
        assert sum(map(len, table.gone)) == (5 if save_first else 0)


def test_the_format_is_as_documented(tmp_path):
    module = DynamicEmbedding(2, optimizer=Adagrad(), bound=0.5)
    module.table.clock = 8
    ids = torch.tensor([-5, 2 ** 62])
    module(ids).sum().backward()
    TableOptimizer(module).step()
    number = save(module, tmp_path)
    file = load_file(tmp_path / f"{number}.0-of-1.safetensors")
    order = np.argsort(file["table.keys"])
    assert file["table.keys"][order].tolist() == ids.tolist()
    assert np.array_equal(file["table.rows"][order], module(ids).detach())
    assert np.array_equal(file["table.state"], np.ones((2, 2)))
    for field, value in (("count", 1), ("used", 8), ("born", 8)):
        assert file[f"table.{field}"].tolist() == [value, value]
    about = json.loads(file["about"].tobytes())
    assert about["kind"] == "full"
    assert about["tables"]["table"]["optimizer"] == "Adagrad"
    latest = json.loads((tmp_path / "latest.json").read_text())
    assert latest["files"] == [[f"{number}.0-of-1.safetensors"]]


def test_a_follower_applies_deltas_while_it_is_read(tmp_path):
    """Each row that a reader sees is one that the trainer had: all of its values are equal."""
    def one_value(scale):
        rows = trainer(ids)
        (rows * scale).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    trainer = DynamicEmbedding(8, optimizer=SGD(lr=1.0), bound=0.0)
    optimizer = TableOptimizer(trainer)
    ids = torch.arange(10_000)
    one_value(1.0)
    save(trainer, tmp_path)
    server = DynamicEmbedding(8, optimizer=SGD(lr=1.0), bound=0.0)
    follower = Follower(server, tmp_path)
    assert follower.poll() == 1
    wrong, ended = [], threading.Event()

    def read():
        while not ended.is_set():
            with follower.reading():
                rows = server(ids).detach()
            if not (rows == rows[:, :1]).all() or rows.min() < -6 or rows.max() > -1:
                wrong.append(rows)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(5):
        one_value(1.0)
        save(trainer, tmp_path, delta=True)
        assert follower.poll() == 1
        with follower.reading():
            assert torch.equal(server(ids), trainer(ids))
    ended.set()
    reader.join()
    assert not wrong
    assert follower.poll() == 0
    save(trainer, tmp_path)
    assert follower.poll() == 1


@pytest.mark.parametrize("saves", long_except([1, 2, 3], 2))
def test_a_process_that_is_killed_leaves_the_last_checkpoint(tmp_path, saves):
    kill_after_saves(SAVES_FOR_EVER, tmp_path, saves)
    model, expected = made(), made()
    load(model, tmp_path)
    steps = model.bags["a"].table.steps
    assert steps >= saves
    for step in range(steps):
        train(expected, step)
    assert contents(model) == contents(expected)


KILLED_AT_EACH_STEP = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from tests.harp.ttf.embedding.test_checkpoint import contents, load, made, save, train
kept, tried, delta = Path(sys.argv[1], "kept"), Path(sys.argv[1], "tried"), sys.argv[2] == "delta"
torch.set_num_threads(1)  # a child of fork has none of OpenMP's threads
model = made()
for step in range(3):
    train(model, step)
    save(model, kept, delta=step > 0)
before = contents(model)
train(model, 3)
after, found = contents(model), []

def killed_at(step):
    left = iter(range(step))
    def look(event, _):
        if event in ("open", "os.rename", "os.remove", "os.scandir") and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(look)

step = 0
while not found or found[-1][0]:
    shutil.rmtree(tried, ignore_errors=True)
    shutil.copytree(kept, tried)
    child = os.fork()
    if not child:
        killed_at(step)
        save(model, tried, delta=delta)
        os._exit(0)
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    other = made()
    load(other, tried)
    assert contents(other) in (before, after)
    found.append((killed, contents(other) == after))
    save(other, tried)  # what the killed one left is in nobody's way
    load(made(), tried)
    step += 1
assert found[0] == (True, False) and found[-1] == (False, True)
assert [new for _, new in found] == sorted(new for _, new in found)
print(len(found))
"""


@pytest.mark.parametrize("kind", long_except(["delta", "full"], "delta"))
def test_a_process_that_is_killed_at_any_step_of_a_save_leaves_a_whole_checkpoint(tmp_path, kind):
    done = subprocess.run([sys.executable, "-c", KILLED_AT_EACH_STEP, str(tmp_path), kind],
                          cwd=ROOT, capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 6


def damaged(folder, what):  # noqa: PLR0911 - a return for each
    """Damage a checkpoint, and say which sentence follows."""
    file = next(folder.glob("*.safetensors"))
    if what == "truncated":
        file.write_bytes(file.read_bytes()[:-5])
        return "ends before tensor .*: it was truncated"
    if what == "foreign":
        file.write_bytes(b"\x10\0\0\0\0\0\0\0" + b"{}".ljust(16))
        return "is no file of dynamic tables"
    if what == "missing":
        file.unlink()
        return "cannot be read: No such file"
    if what == "no JSON":
        (folder / "latest.json").write_text("{")
        return "latest.json: it is no JSON: line 1, column 2"
    if what == "nested":
        (folder / "latest.json").write_text("[" * 100_000)
        return "latest.json: it is no JSON of ours: it is nested too deeply"
    if what == "half":
        latest = json.loads((folder / "latest.json").read_text())
        (folder / "latest.json").write_text(json.dumps({**latest, "files": []}))
        return "latest.json: it has 1 ids and 0 lists of files"
    if what == "another format":
        (folder / "latest.json").write_text('{"format": "x"}')
        return "latest.json: its format is 'x' and this HARP reads 'harp.ttf.embedding/1'"
    (folder / "latest.json").unlink()
    return "has no checkpoint: latest.json: No such file"


@pytest.mark.parametrize("what", ["truncated", "foreign", "missing", "no JSON", "nested", "half",
                                  "another format",
                                  "no manifest"])
def test_a_damaged_checkpoint_is_one_sentence_and_changes_nothing(tmp_path, what):
    model = made()
    train(model, 0)
    save(model, tmp_path)
    sentence = damaged(tmp_path, what)
    train(model, 1)
    before = contents(model)
    with pytest.raises(CheckpointError, match=sentence) as caught:
        load(model, tmp_path)
    assert "\n" not in str(caught.value)
    assert contents(model) == before


@pytest.mark.parametrize(("other", "sentence"), [
    (lambda: EmbeddingCollection({"a": DynamicEmbeddingBag(4, optimizer=Adam(lr=0.1)),
                                  "c": DynamicEmbeddingBag(3, optimizer=Adam(lr=0.1))}),
     "has no table 'bags.c'; it has bags.a, bags.b"),
    (lambda: EmbeddingCollection({"a": DynamicEmbeddingBag(5, optimizer=Adam(lr=0.1))}),
     "table 'bags.a' has dim 4, and the model's has 5"),
    (lambda: EmbeddingCollection({"a": DynamicEmbeddingBag(4)}),
     "has optimizer Adam, and the model's has SGD"),
    (lambda: EmbeddingCollection({"a": DynamicEmbeddingBag(4, optimizer=Adam(), seed=9)}),
     "has seed 0, and the model's has 9")])
def test_a_checkpoint_of_another_model_is_one_sentence(tmp_path, other, sentence):
    model = made()
    train(model, 0)
    save(model, tmp_path)
    with pytest.raises(CheckpointError, match=sentence):
        load(other(), tmp_path)


FULL_DISK = """
import os, sys, torch
from tests.harp.ttf.embedding.test_checkpoint import *
folder = sys.argv[1]
model, other = made(), made()
train(model, 0)
save(model, folder)
train(model, 1)
model.add_module("large", DynamicEmbedding(512, optimizer=Adam(lr=0.1)))
model.large(torch.arange(100)).sum().backward()
changed = model.bags["a"].changed().tolist()
try:
    save(model, folder)
except CheckpointError as error:
    print(error)
assert model.bags["a"].changed().tolist() == changed
load(other, folder)
print(other.bags["a"].table.steps, len(os.listdir(folder)))
"""


@long
def test_a_disk_that_is_full_leaves_the_last_checkpoint_and_what_changed(tmp_path):
    mounted = 'mount -t tmpfs -o size=128k none "$2" && exec "$0" -c "$1" "$2"'
    done = subprocess.run(["unshare", "--mount", "sh", "-c", mounted, sys.executable, FULL_DISK,
                           str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    said, rest = done.stdout.splitlines()
    assert "cannot be saved: No space left on device; the last checkpoint is as it was" in said
    assert rest == "1 2"


@pytest.mark.parametrize("error", [StoreError("rows: Input/output error"), MemoryError("none")])
def test_an_error_in_the_middle_of_a_load_changes_nothing(tmp_path, monkeypatch, error):
    """The disk under the tables fails behind the first of their records."""
    model = made()
    train(model, 0)
    save(model, tmp_path)
    train(model, 1)
    save(model, tmp_path, delta=True)
    train(model, 2)
    before, changed = contents(model), model.bags["a"].changed().tolist()
    write, written = Table.write, []

    def fails(table, heads, values):
        written.append(len(heads))
        if len(written) == 3:
            raise error
        write(table, heads, values)

    monkeypatch.setattr(Table, "write", fails)
    with pytest.raises(type(error), match=str(error)):
        load(model, tmp_path)
    assert written[0] > 0
    assert contents(model) == before
    assert model.bags["a"].changed().tolist() == changed
    monkeypatch.undo()
    other = made()
    load(other, tmp_path)
    load(model, tmp_path)
    assert contents(model) == contents(other) != before


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path, monkeypatch):
    """It is read before it is mapped: the kernel ends a process whose mapping cannot be read."""
    class Broken(io.FileIO):
        def readinto(self, into):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    model = made()
    train(model, 0)
    save(model, tmp_path)
    before, opened = contents(model), Path.open
    monkeypatch.setattr(Path, "open", lambda path, *how, **more: Broken(path) if (
        path.suffix == ".safetensors") else opened(path, *how, **more))
    with pytest.raises(CheckpointError, match=r"cannot be read: Input/output error"):
        load(model, tmp_path)
    assert contents(model) == before


def test_a_load_of_a_table_on_disk_takes_its_place(tmp_path):
    """Rows in memory and on disk change places, and admission goes on where it was."""
    def capped():
        return DynamicEmbedding(8, optimizer=Adam(lr=0.1), memory_bytes=100 * 24 * 4, shards=2,
                                folder=str(tmp_path), admit=2)

    def step(module, first):
        optimizer = TableOptimizer(module)
        for ids in 2 * torch.arange(first, first + 5000).split(500):
            module(ids).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    model, other = capped(), capped()
    step(model, 0)
    save(model, tmp_path / "saved")
    step(other, 500)
    other(torch.tensor([-7])).sum().backward()
    TableOptimizer(other).step()
    load(other, tmp_path / "saved")
    assert contents(other) == contents(model)
    assert 0 < other.table.resident < other.table.rows == 5000
    for module in (model, other):
        module.table.drop()
        module(torch.tensor([-7])).sum().backward()
        TableOptimizer(module).step()
    assert (model.table.rows, other.table.rows) == (5000, 5001)


def test_parts_of_another_model_stay(tmp_path):
    other = tmp_path / "model-00001-of-00002.safetensors"
    other.write_bytes(b"kept")
    for _ in range(3):
        save(DynamicEmbedding(4), tmp_path)
    assert other.read_bytes() == b"kept"
    assert len(list(tmp_path.glob("*.0-of-1.safetensors"))) == 2


def test_old_files_go_with_the_next_full_checkpoint_but_one(tmp_path):
    model = made()
    for full in range(3):
        train(model, full)
        save(model, tmp_path)
        save(model, tmp_path, delta=True)
    # The chain, and the one that a reader may still be at.
    assert len(list(tmp_path.glob("*.safetensors"))) == 4


def test_a_wrapped_model_saves_and_loads_what_a_plain_one_does(tmp_path):
    """A trainer saves what it has compiled or put into DDP, and a server loads a plain model."""
    trained = made()
    train(trained, 0)
    wrapped = torch.compile(trained, backend="eager")
    save(wrapped, tmp_path)
    plain = made()
    load(plain, tmp_path)
    assert contents(plain) == contents(trained)
    save(trained, tmp_path, delta=True)
    load(torch.compile(plain, backend="eager"), tmp_path)
