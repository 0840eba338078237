"""Files of tensors that are written in parts, by one process or several, and flushed to the disk.

    write_header(path, tensors)        # one process makes the file
    write_tensors(path, tensors)       # each writes what it has
    read_tensors(path)["name"]         # mapped, not read

The format is that of github.com/huggingface/safetensors: the length of a header in 8 bytes, the
header in JSON, and the tensors one after another. Its own package writes tensors that are whole in
memory.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
         "int64": "I64", "int32": "I32", "uint32": "U32", "int16": "I16", "int8": "I8",
         "uint8": "U8", "bool": "BOOL"}
"""Names of torch's types in the header."""
KINDS = {name: kind for kind, name in TYPES.items()}
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
        flat = torch.frombuffer(self.data or bytearray(1), dtype=torch.uint8)[:len(self.data)]
        return flat.view(getattr(torch, self.kind)).view(self.shape)


Tensors = list[tuple[str, str, list[int], "Callable[[], Iterable[tuple[int, Any]]]"]]
"""Name, type and shape of each, and a function that gives pieces, with their begins."""


def write_header(path: Path, tensors: Tensors) -> None:
    """Make a file of tensors, which are zero as yet."""
    header, ends = _header(tensors)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + ends[-1])


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Write what this process has of the tensors of a file, and flush it."""
    header, ends = _header(tensors)
    with path.open("r+b") as file:
        for (*_, pieces), first in zip(tensors, ends, strict=False):
            for begin, piece in pieces():
                file.seek(len(header) + first + begin)
                file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file and flush it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _header(tensors: Tensors) -> tuple[bytes, list[int]]:
    """Give the header of a file, and the begins of tensors behind it, up to the end of the last."""
    header, ends = {}, [0]
    for name, kind, shape, _ in tensors:
        ends.append(ends[-1] + _bytes_of(kind, shape))
        header[name] = {"dtype": TYPES[kind], "shape": shape, "data_offsets": ends[-2:]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, ends


def _bytes_of(kind: str, shape: list[int]) -> int:
    return math.prod(shape) * int(getattr(torch, kind).itemsize)


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
        sizes = {name: _bytes_of(one.kind, one.shape) for name, one in found.items()}
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise CheckpointError(f"{path} is no file of a checkpoint: it does not begin with a header "
                              "of safetensors") from None
    for name, one in found.items():
        begin, end = header[name]["data_offsets"]
        if len(one.data) != end - begin:
            raise CheckpointError(f"{path} ends before tensor {name}: it was truncated")
        if end - begin != sizes[name]:
            raise CheckpointError(f"{path} has {end - begin} bytes for tensor {name}: they are not "
                                  f"{one.kind} of shape {one.shape}")
    return found


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
