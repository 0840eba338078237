"""Checkpoints on disk: whole whatever happens, and refused where they are not."""

from __future__ import annotations

import errno
import json
import os

import pytest
import torch

from harp.angelptm import checkpoint_files, saving
from harp.tensor_files import CheckpointError
from tests.harp.angelptm.models import (
    batches,
    config,
    engine_of,
    parameters_of,
    seeded,
    train,
)
from tests.support.killed_saver import kill_after_saves
from tests.support.levels import long

SAVES_FOR_EVER = """
import sys
from tests.harp.angelptm.models import batches, config, engine_of, seeded, train
with engine_of(seeded(), config(14, 160)) as engine:
    while True:
        train(engine, batches(1))
        engine.save_checkpoint(sys.argv[1], "the same")
        print("saved", flush=True)
"""


def test_files_of_others_stay_in_the_folder_of_a_checkpoint(tmp_path):
    """A tokenizer, for instance, which scripts save there before or behind."""
    own = tmp_path / "one" / "words" / "tokens.txt"
    own.parent.mkdir(parents=True)
    own.write_text("kept")
    with engine_of(seeded(), config()) as engine:
        for _ in range(2):
            engine.save_checkpoint(tmp_path, "one")
            assert own.read_text() == "kept"
            assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "one"]


def test_two_kills_leave_the_last_checkpoint(tmp_path, monkeypatch):
    """One between the two renames of a save, and one in the next save."""
    def killed(*_):
        raise KeyboardInterrupt

    with engine_of(seeded(), config()) as engine:
        engine.save_checkpoint(tmp_path, "one")
        (tmp_path / "one").rename(tmp_path / "one.old")
        monkeypatch.setattr(saving, "write_tensors", killed)
        with pytest.raises(KeyboardInterrupt):
            engine.save_checkpoint(tmp_path, "one")
        engine.load_checkpoint(tmp_path)


@pytest.mark.parametrize(("module", "call"),
                         [(saving, "write_tensors"), (checkpoint_files, "publish")])
def test_a_disk_that_is_full_is_a_sentence_and_leaves_the_last_checkpoint(tmp_path, monkeypatch,
                                                                          module, call):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with engine_of(seeded(), config()) as engine:
        engine.save_checkpoint(tmp_path, "one")
        monkeypatch.setattr(module, call, full)
        with pytest.raises(CheckpointError, match=r"two.new cannot be written: No space left on "
                                                  "device; the last checkpoint is as it was"):
            engine.save_checkpoint(tmp_path, "two")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "one"]
        engine.load_checkpoint(tmp_path)


@long
def test_a_process_that_is_killed_leaves_the_last_checkpoint(tmp_path):
    for saves in (1, 2, 3):
        kill_after_saves(SAVES_FOR_EVER, tmp_path, saves)
        with engine_of(seeded(seed=5), config(14, 160)) as engine:
            engine.load_checkpoint(tmp_path)
            assert engine.global_steps >= saves
            train(engine, batches(1))


def test_a_file_that_is_no_checkpoint_is_one_sentence(tmp_path):
    with engine_of(seeded(), config()) as engine:
        with pytest.raises(CheckpointError, match="has no checkpoint: latest: No such file"):
            engine.load_checkpoint(tmp_path)
        engine.save_checkpoint(tmp_path, "one")
        with pytest.raises(CheckpointError, match="no checkpoint 'two'; there are one"):
            engine.load_checkpoint(tmp_path, "two")
        file = tmp_path / "one" / "optimizer.safetensors"
        file.write_bytes(file.read_bytes()[:-8])
        with pytest.raises(CheckpointError, match=r"ends before tensor \S+: it was truncated"):
            engine.load_checkpoint(tmp_path)
        file.write_bytes(b"")
        with pytest.raises(CheckpointError, match="is no file of a checkpoint"):
            engine.load_checkpoint(tmp_path)


def nested(state):
    return "[" * 100_000


@pytest.mark.parametrize(("change", "sentence"), [
    (lambda state: "{", "state.json is no JSON"), (nested, "state.json is no JSON"),
    (lambda state: "\udcff", "state.json is no JSON"),
    (lambda state: {**state, "counts": {}}, r"state.json: \S+ is missing in counts"),
    (lambda state: {**state, "global_steps": -1}, "state.json: global_steps is -1"),
    (lambda state: {**state, "groups": []}, "groups has 0 entries, and the optimizer 1"),
    (lambda state: {**state, "scaler": [1]}, "scaler is .1.: a list of 3 numbers is possible"),
    (lambda state: {name: one for name, one in state.items() if name != "client_state"},
     "state.json: client_state is missing")])
def test_a_state_that_is_not_whole_is_refused_before_anything_is_loaded(tmp_path, change, sentence):
    with engine_of(seeded(), config()) as engine:
        engine.save_checkpoint(tmp_path, "one", {"best": float("inf")})
        train(engine, batches(1))
        expected = parameters_of(engine)
        file = tmp_path / "one" / "state.json"
        whole = file.read_text()
        changed = change(json.loads(whole))
        text = changed if isinstance(changed, str) else json.dumps(changed)
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(CheckpointError, match=sentence):
            engine.load_checkpoint(tmp_path)
        assert all(map(torch.equal, parameters_of(engine), expected))
        assert engine.global_steps == 1
        file.write_text(whole)
        assert engine.load_checkpoint(tmp_path)[1] == {"best": float("inf")}


def test_latest_that_is_no_text_is_one_sentence(tmp_path):
    with engine_of(seeded(), config()) as engine:
        engine.save_checkpoint(tmp_path)
        (tmp_path / "latest").write_bytes(b"\xff")
        with pytest.raises(CheckpointError, match="has no checkpoint: latest is not text"):
            engine.load_checkpoint(tmp_path)
