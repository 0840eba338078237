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

The format is that of github.com/huggingface/safetensors: the length of a header in 8 bytes, the
header in JSON, and the tensors one after another.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harp.reading import FileError, Node, read_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import torch

TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
         "int64": "I64", "int32": "I32", "uint32": "U32", "int16": "I16", "int8": "I8",
         "uint8": "U8", "bool": "BOOL"}
"""Names of torch's types in the header."""
KINDS = {name: kind for kind, name in TYPES.items()}
FILES = MODEL, OPTIMIZER, STATE, SCHEDULER = (
    "model.safetensors", "optimizer.safetensors", "state.json", "scheduler.pt")
"""Of a checkpoint; others in its folder are somebody's own."""
MOST_STEPS = 1 << 62
SCALER_NUMBERS = 3
"""Numbers of a scaler's state (`harp.angelptm.scaler`)."""
READ_BYTES = 1 << 20
"""Bytes that a file is read by before it is mapped."""


class CheckpointError(OSError):
    """A checkpoint cannot be read; the message is one sentence."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, which is mapped."""

    data: memoryview
    kind: str
    """Its type, by torch's name."""
    shape: list[int]

    def tensor(self) -> torch.Tensor:
        """Give it as a tensor; what is written there stays in this process."""
        import torch
        flat = torch.frombuffer(self.data or bytearray(1), dtype=torch.uint8)[:len(self.data)]
        return flat.view(getattr(torch, self.kind)).view(self.shape)


Tensors = list[tuple[str, str, list[int], int, "Callable[[], Iterable[tuple[int, Any]]]"]]
"""Name, type, shape and bytes of each, and a function that gives pieces, with their begins."""


def write_header(path: Path, tensors: Tensors) -> None:
    """Make a file of tensors, which are zero as yet."""
    with path.open("wb") as file:
        file.write(_header(tensors))
        file.truncate(file.tell() + sum(size for _, _, _, size, _ in tensors))


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Write what this process has of the tensors of a file, and flush it."""
    at = len(_header(tensors))
    with path.open("r+b") as file:
        for *_, size, pieces in tensors:
            for begin, piece in pieces():
                file.seek(at + begin)
                file.write(piece)
            at += size
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a text and flush it."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file and flush it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _header(tensors: Tensors) -> bytes:
    header, at = {}, 0
    for name, kind, shape, size, _ in tensors:
        header[name] = {"dtype": TYPES[kind], "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_tensors(path: Path) -> dict[str, Stored]:
    """Give each tensor of a file, which is mapped. CheckpointError.

    All of it is read first, and forgotten: an I/O error of a mapping would end the process.
    """
    try:
        with path.open("rb", buffering=0) as file:
            passing = bytearray(READ_BYTES)
            while file.readinto(passing):
                pass
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        begin = 8 + int.from_bytes(whole[:8], "little")
        header = json.loads(bytes(whole[8:begin]))
        found = {name: Stored(
            whole[begin + about["data_offsets"][0]:begin + about["data_offsets"][1]],
            KINDS[about["dtype"]], about["shape"])
            for name, about in header.items() if name != "__metadata__"}
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise CheckpointError(f"{path} is no file of a checkpoint: it does not begin with a header "
                              "of safetensors") from None
    for name, one in found.items():
        begin, end = header[name]["data_offsets"]
        if len(one.data) != end - begin:
            raise CheckpointError(f"{path} ends before tensor {name}: it was truncated")
    return found


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
    write_text(named, tag)
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
        if (folder / name / "state.json").exists():
            return folder / name
    known = sorted(path.parent.name for path in folder.glob("*/state.json"))
    raise CheckpointError(f"{folder} has no checkpoint {tag!r}; there are {', '.join(known)}")


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
