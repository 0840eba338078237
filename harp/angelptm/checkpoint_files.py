"""Checkpoints: files of safetensors and a JSON, which appear as a whole or not at all.

    FOLDER/latest                      the tag of the last checkpoint that is whole
    FOLDER/TAG/model.safetensors       parameters in float32, and buffers, by the model's names
    FOLDER/TAG/optimizer.safetensors   NAME.mean and NAME.square
    FOLDER/TAG/state.json              counters, scale, groups, and what the script adds
    FOLDER/TAG/scheduler.pt            the state of a scheduler that the engine steps

A checkpoint is written beside its place, flushed to the disk and renamed; then `latest` is. A
process that is killed meanwhile leaves the last one. Tensors are written and read by pages, so that
nothing is in memory a second time. Several ranks write their parts of the same files, in a folder
that all of them see, and the first renames it when all have flushed theirs.
"""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from harp.reading import FileError, Node, read_bytes
from harp.tensor_files import CheckpointError, sync_folder, write_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FILES = MODEL, OPTIMIZER, STATE, SCHEDULER = (
    "model.safetensors", "optimizer.safetensors", "state.json", "scheduler.pt")
"""Of a checkpoint; others in its folder are somebody's own."""
MOST_STEPS = 1 << 62
SCALER_NUMBERS = 3
"""Numbers of a scaler's state (`harp.angelptm.scaler`)."""


def read_state(path: Path, names: Sequence[str], groups: int | None) -> dict[str, Any]:
    """Give what a checkpoint keeps beside tensors. CheckpointError.

    It has a count for each of the parameters ``names``, and ``groups`` groups of the optimizer, or
    any if that is None.
    """
    try:
        # What a script added may be infinite, which RFC 8259 has no word for and Python writes.
        state = Node(json.loads(read_bytes(path)), "")
        for count in (*map(state.__getitem__, ("global_steps", "skipped_steps")),
                      *map(state["counts"].__getitem__, names)):
            count.whole(0, MOST_STEPS)
        found = [dict(group.items()) for group in state["groups"].each()]
        if groups is not None and len(found) != groups:
            raise FileError(f"groups has {len(found)} entries, and the optimizer {groups}")
        scaler = state["scaler"]
        if not scaler.is_none() and len([one.number() for one in scaler.each()]) != SCALER_NUMBERS:
            scaler.fail(f"a list of {SCALER_NUMBERS} numbers")
        state["client_state"].items()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except FileError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path} is no JSON") from None
    kept: dict[str, Any] = state.plain()
    return kept


def fresh_folder(folder: Path, tag: str) -> Path:
    """The folder in which a checkpoint is written."""
    return folder / f"{tag}.new"


@contextmanager
def writing(fresh: Path) -> Iterator[None]:
    """Name the folder in which a checkpoint cannot be written. CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{fresh} cannot be written: {error.strerror}; the last checkpoint "
                              "is as it was") from None


def begin(folder: Path, tag: str) -> None:
    """Make the folder in which a checkpoint is written."""
    give_up(folder, tag)
    _settle(folder / tag, folder / f"{tag}.old")
    fresh_folder(folder, tag).mkdir(parents=True)


def give_up(folder: Path, tag: str) -> None:
    """Remove what was written of a checkpoint."""
    shutil.rmtree(fresh_folder(folder, tag), ignore_errors=True)


def publish(folder: Path, tag: str) -> None:
    """Make a checkpoint that is written the latest."""
    fresh, place, old = fresh_folder(folder, tag), folder / tag, folder / f"{tag}.old"
    sync_folder(fresh)
    if place.exists():
        place.rename(old)
    fresh.rename(place)
    named = folder / "latest.new"
    write_bytes(named, tag.encode())
    named.replace(folder / "latest")
    sync_folder(folder)
    _settle(place, old)


def _settle(place: Path, old: Path) -> None:
    """Have others' files of an old checkpoint in the new one, and remove the old one.

    Where a process was killed between two renames, the old one is the last that is whole.
    """
    if old.exists() and not place.exists():
        old.rename(place)
    elif old.exists():
        for path in old.iterdir():
            if path.name not in FILES and not (place / path.name).exists():
                path.rename(place / path.name)
        shutil.rmtree(old, ignore_errors=True)


def find(folder: Path, tag: str | None) -> Path:
    """Give the folder of a checkpoint: of this tag, or the latest. Raises CheckpointError."""
    try:
        tag = tag or (folder / "latest").read_text("utf-8").strip()
    except OSError as error:
        raise CheckpointError(f"{folder} has no checkpoint: latest: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{folder} has no checkpoint: latest is not text") from None
    for name in (tag, f"{tag}.old"):  # it was killed between two renames
        if (folder / name / STATE).exists():
            return folder / name
    known = sorted(path.parent.name for path in folder.glob(f"*/{STATE}"))
    raise CheckpointError(f"{folder} has no checkpoint {tag!r}; there are {', '.join(known)}")
