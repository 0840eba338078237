"""Checkpoints: files of safetensors and a JSON, which appear as a whole or not at all.

    FOLDER/latest                      the tag of the last checkpoint that is whole
    FOLDER/TAG/model.safetensors       parameters in float32, and buffers, by the model's names
    FOLDER/TAG/optimizer.safetensors   NAME.mean and NAME.square
    FOLDER/TAG/state.json              counters, scale, groups, and what the script adds

A checkpoint is written beside its place, flushed to the disk and renamed; then `latest` is. A
process that is killed meanwhile leaves the last one. Tensors are written and read by pages, so that
nothing is in memory a second time. The format is that of github.com/huggingface/safetensors: the
length of a header in 8 bytes, the header in JSON, and the tensors one after another.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
         "int32": "I32", "uint32": "U32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"}
"""Names of torch's types in the header."""


class CheckpointError(OSError):
    """A checkpoint cannot be read; the message is one sentence."""


def write_tensors(path: Path, tensors: list[tuple[str, str, list[int], int, Callable[[], Any]]],
                  ) -> None:
    """Write tensors: name, type, shape, bytes, and a function that gives them piece by piece."""
    header, at = {}, 0
    for name, kind, shape, size, _ in tensors:
        header[name] = {"dtype": TYPES[kind], "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for *_, pieces in tensors:
            for piece in pieces():
                file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def read_tensors(path: Path) -> dict[str, memoryview]:
    """Give the bytes of each tensor of a file, which is mapped and not read. CheckpointError."""
    try:
        with path.open("rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        begin = 8 + int.from_bytes(whole[:8], "little")
        header = json.loads(bytes(whole[8:begin]))
        found = {name: whole[begin + about["data_offsets"][0]:begin + about["data_offsets"][1]]
                 for name, about in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{path} is no file of a checkpoint: {error}") from None
    for name, data in found.items():
        begin, end = header[name]["data_offsets"]
        if len(data) != end - begin:
            raise CheckpointError(f"{path} ends before tensor {name}: it was truncated")
    return found


def publish(folder: Path, tag: str, fill: Callable[[Path], None]) -> Path:
    """Have a checkpoint filled, and make it the latest."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh, place, old = (folder / f"{tag}{end}" for end in (".new", "", ".old"))
    for left in (fresh, old):
        shutil.rmtree(left, ignore_errors=True)
    fresh.mkdir()
    fill(fresh)
    _sync_folder(fresh)
    if place.exists():
        place.rename(old)
    fresh.rename(place)
    named = folder / "latest.new"
    with named.open("w", encoding="utf-8") as file:
        file.write(tag)
        file.flush()
        os.fsync(file.fileno())
    named.replace(folder / "latest")
    _sync_folder(folder)
    shutil.rmtree(old, ignore_errors=True)
    return place


def find(folder: Path, tag: str | None) -> Path:
    """Give the folder of a checkpoint: of this tag, or the latest. Raises CheckpointError."""
    try:
        tag = tag or (folder / "latest").read_text("utf-8").strip()
    except OSError as error:
        raise CheckpointError(f"{folder} has no checkpoint: latest: {error.strerror}") from None
    for name in (tag, f"{tag}.old"):  # it was killed between two renames
        if (folder / name / "state.json").exists():
            return folder / name
    known = sorted(path.parent.name for path in folder.glob("*/state.json"))
    raise CheckpointError(f"{folder} has no checkpoint {tag!r}; there are {', '.join(known)}")


def chunks_of(data: memoryview, sizes: Iterable[int]) -> Iterator[memoryview]:
    """Cut bytes into pieces of these sizes."""
    at = 0
    for size in sizes:
        yield data[at:at + size]
        at += size


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
