"""A table of rows by 64-bit ids: the binding of `cnet/table/table.h`.

A `Table` is what modules, checkpoints and exchange share. Its calls take numpy arrays and run
without the interpreter's lock, in as many threads as torch's operators do; one thread at a time may
change a table.
"""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import torch

from harp._cnet import ffi, lib
from harp.angelptm.cache import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harp.ttf.embedding.optimizers import Settings

HEAD = np.dtype([("key", "i8"), ("count", "u4"), ("used", "u4"), ("born", "u4"),
                 ("changed", "u4")])
"""`struct harp_record`."""
DIRTY = 1 << 31
"""In `changed`: since the last save."""
BAGS = np.dtype([("table", "u8"), ("keys", "u8"), ("offsets", "u8"), ("weights", "u8"),
                 ("rows", "u8"), ("count", "u8"), ("bags", "u8"), ("stride", "u8"),
                 ("padding", "i8"), ("mean", "?"), ("padded", "?")], align=True)
"""`struct harp_embedding_bags`."""
assert HEAD.itemsize == ffi.sizeof("struct harp_record")
assert BAGS.itemsize == ffi.sizeof("struct harp_embedding_bags")
WIDEST = 4096
"""Floats of a row: TABLE_DIM_MOST."""
MOST_BOUND = 1e30
"""Of first rows, which are drawn in float32."""
PART = 1 << 16
"""Records that are read at once."""
# torch loads its OpenMP so that others find it.
if parallel := getattr(ctypes.CDLL(None), "GOMP_parallel", None):
    lib.harp_embedding_use_openmp(ffi.cast(
        "harp_openmp_parallel *", ctypes.cast(parallel, ctypes.c_void_p).value))


def cpus() -> int:
    """Count the CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


class Table:
    """Rows of ``dim`` floats, each with the optimizer's state."""

    def __init__(self, dim: int, optimizer: Settings, *, seed: int = 0, bound: float = 0.01,
                 admit: int = 1, expect: int = 1 << 20, shards: int | None = None,
                 memory_bytes: int | None = None, folder: str | None = None) -> None:
        """Make an empty table. ValueError if a setting is out of bounds.

        ``memory_bytes`` bounds the memory of rows and their states; the rest is in a file in
        ``folder`` (by default that for temporary files), which is removed with the table.
        StoreError if the file cannot be made. A batch's own rows are in memory, even if they take
        more.

        A key is inserted when its ``admit``-th gradient comes. Until then it is counted, in four
        bytes for each of the ``expect`` keys that are expected to be too rare.
        """
        for name, value, least, most in (
                ("dim", dim, 1, WIDEST), ("admit", admit, 1, 255),
                ("expect", expect, 1, 1 << 29), ("shards", shards or 1, 1, 64)):
            if not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f"{name}={value!r}: an integer from {least} to {most}")
        if not isinstance(seed, int):
            raise ValueError(f"seed={seed!r}: an integer")
        if not isinstance(bound, int | float) or not 0 <= bound <= MOST_BOUND:
            raise ValueError(f"bound={bound!r}: a number from 0 to {MOST_BOUND:g}")
        self.dim, self.optimizer, self.seed, self.bound = dim, optimizer, seed, bound
        self._admission = admit, expect
        self.floats = dim + optimizer.floats(dim)
        self.shards = shards or min(cpus(), 16)
        self.steps = 0
        """Steps of the optimizer."""
        self.gone: list[np.ndarray] = []
        """Keys that were removed since the last save, if there was one."""
        self.saved_as = ""
        """The id of the last checkpoint that was saved or loaded."""
        self._clock = 0
        how = ffi.new("struct harp_embedding_how *", {
            "seed": seed % 2 ** 64, "dim": dim, "state": self.floats - dim, "bound": bound,
            "first_state": optimizer.initial, "shards": self.shards, "now": 0,
            "admit_count": admit, "admit_bytes": max(4 * expect // self.shards, 64)})
        opened = lib.harp_embedding_open(how)
        if opened == ffi.NULL:
            raise MemoryError(f"no memory for a table of {self.shards} shards")
        self.at = ffi.gc(opened, lib.harp_embedding_close)
        self.address = int(ffi.cast("uintptr_t", opened))
        """Calls over several tables have them in this order, in which all threads lock them."""
        self.memory_bytes, self.folder = memory_bytes, folder
        if memory_bytes is not None:
            self._cap(memory_bytes, folder or tempfile.gettempdir())

    def _cap(self, memory_bytes: int, folder: str) -> None:
        least = 4 * self.floats * self.shards
        if not isinstance(memory_bytes, int) or memory_bytes < least:
            raise ValueError(f"memory_bytes={memory_bytes!r}: an integer of at least {least}, a "
                             "row for each shard")
        _check(lib.harp_embedding_cap(self.at, os.fsencode(folder), memory_bytes))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse copies. TypeError."""
        raise TypeError("a dynamic table is neither copied nor pickled: save(model, folder) and "
                        "load(other, folder) of harp.ttf.embedding.checkpoint carry its rows")

    @property
    def rows(self) -> int:
        """Count the rows."""
        return int(lib.harp_embedding_rows(self.at))

    @property
    def bytes(self) -> int:
        """Give the memory of rows, states, index and what waits."""
        return int(lib.harp_embedding_bytes(self.at))

    @property
    def resident(self) -> int:
        """Count the rows that are in memory."""
        return int(lib.harp_embedding_resident(self.at))

    @property
    def pages_read(self) -> int:
        """Count the pages that were read from disk, each of `page_bytes`."""
        return int(lib.harp_embedding_pages_read(self.at))

    @property
    def page_bytes(self) -> int:
        """Give the bytes of a page on disk; 0 without a cap."""
        return int(lib.harp_embedding_page_bytes(self.at))

    @property
    def clock(self) -> int:
        """The time that rows are stamped with: a day, an hour, a step, as the caller counts."""
        return self._clock

    @clock.setter
    def clock(self, now: int) -> None:
        if not isinstance(now, int) or not 0 <= now < 2 ** 32:
            raise ValueError(f"clock={now!r}: an integer from 0 to 2^32 - 1")
        self._clock = now
        lib.harp_embedding_set_clock(self.at, now)

    def drop(self) -> None:
        """Forget gradients that wait."""
        lib.harp_embedding_drop(self.at)

    def remove(self, keys: np.ndarray) -> int:
        """Remove keys, and count those that were there."""
        keys = np.ascontiguousarray(keys, dtype=np.int64)
        gone = np.zeros(len(keys), dtype=np.uint8)
        removed = lib.harp_embedding_remove(self.at, ffi.from_buffer("int64_t[]", keys), len(keys),
                                            ffi.from_buffer("uint8_t[]", gone))
        if removed and self.saved_as:  # a delta is of a checkpoint
            self.gone.append(keys[gone.view(bool)])
        return int(removed)

    def read(self, *, values: bool = True) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Give heads and values (row, then state) of all records, part by part.

        The table may not change meanwhile.
        """
        for shard in range(self.shards):
            at = 0
            while True:
                heads = np.empty(PART, dtype=HEAD)
                floats = np.empty((PART if values else 0, self.floats), dtype=np.float32)
                n = _check(lib.harp_embedding_read(
                    self.at, shard, at, PART, ffi.from_buffer("struct harp_record[]", heads),
                    ffi.from_buffer("float[]", floats) if values else ffi.NULL))
                if not n:
                    break
                yield heads[:n], floats[:n]
                at += n

    def reserve(self, rows: int) -> None:
        """Have room on disk for as many rows as are to be written. StoreError."""
        _check(lib.harp_embedding_reserve(self.at, rows))

    def write(self, heads: np.ndarray, values: np.ndarray) -> None:
        """Write whole records, which count as unchanged."""
        heads = np.ascontiguousarray(heads, dtype=HEAD)
        values = np.ascontiguousarray(values, dtype=np.float32)
        assert values.shape == (len(heads), self.floats)
        _check(lib.harp_embedding_write(self.at, ffi.from_buffer("struct harp_record[]", heads),
                                        ffi.from_buffer("float[]", values), len(heads),
                                        torch.get_num_threads()),
               f"no memory for {len(heads)} more rows")

    def empty_copy(self) -> Table:
        """Make an empty table with the same settings. StoreError."""
        admit, expect = self._admission
        return Table(self.dim, self.optimizer, seed=self.seed, bound=self.bound, admit=admit,
                     expect=expect, shards=self.shards, memory_bytes=self.memory_bytes,
                     folder=self.folder)

    def take(self, other: Table) -> None:
        """Swap all records with a table that `empty_copy` made."""
        lib.harp_embedding_swap(self.at, other.at)
        self.steps, self.clock = other.steps, other.clock

    def saved(self) -> None:
        """Count all records as unchanged, and forget removed keys."""
        lib.harp_embedding_saved(self.at)
        self.gone = []


def _check(result: int, no_memory: str = "no memory for rows") -> int:
    """Raise what a call of C failed with: MemoryError or StoreError."""
    if result == -errno.ENOMEM:
        raise MemoryError(no_memory)
    if result < 0:
        raise StoreError(ffi.string(lib.harp_embedding_why()).decode())
    return int(result)


def look_up(features: np.ndarray) -> None:
    """Write the bags of features, an array of BAGS."""
    _check(lib.harp_embedding_look_up(ffi.from_buffer("struct harp_embedding_bags[]", features),
                                      len(features), torch.get_num_threads()))


def warm(features: np.ndarray) -> None:
    """Read rows of features from disk, beside what other threads do."""
    _check(lib.harp_embedding_warm(ffi.from_buffer("struct harp_embedding_bags[]", features),
                                   len(features)))


def add(features: np.ndarray) -> bool:
    """Add gradients to what waits, and say whether they are finite; if not, nothing is added."""
    failed = lib.harp_embedding_add(ffi.from_buffer("struct harp_embedding_bags[]", features),
                                    len(features), torch.get_num_threads())
    if failed == -errno.EDOM:
        return False
    _check(failed, "no memory for rows of new ids")
    return True


def apply(tables: Sequence[tuple[Table, Settings]], scale: float) -> None:
    """Make a step of each table. FloatingPointError, with nothing changed."""
    tables = sorted(tables, key=lambda pair: pair[0].address)
    steps = ffi.new("struct harp_embedding_step[]", [
        {"scale": scale, **how.step(table.steps + 1)} for table, how in tables])
    failed = lib.harp_embedding_apply([table.at for table, _ in tables], steps, len(tables),
                                      torch.get_num_threads())
    if failed:
        for table, _ in tables:
            table.drop()
        raise FloatingPointError("the sum of an id's gradients is not finite: no row was changed")
    for table, _ in tables:
        table.steps += 1


def distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give keys in the order of their first appearance, and the place of each key among them."""
    found, place = np.empty_like(keys), np.empty(len(keys), dtype=np.uint32)
    n = lib.harp_embedding_distinct(ffi.from_buffer("int64_t[]", keys), len(keys),
                                    ffi.from_buffer("int64_t[]", found),
                                    ffi.from_buffer("uint32_t[]", place))
    if n < 0:
        raise MemoryError(f"no memory to number {len(keys)} ids")
    return found[:n], place


def owners(keys: np.ndarray, parts: int) -> np.ndarray:
    """Give the owner of each key among ``parts``."""
    owner = np.empty(len(keys), dtype=np.uint32)
    lib.harp_embedding_owners(ffi.from_buffer("int64_t[]", keys), len(keys), parts,
                              ffi.from_buffer("uint32_t[]", owner))
    return owner


def wrong_offset(offsets: int, bags: int, count: int) -> int:
    """Give the first place where offsets (an address) are wrong, or -1."""
    return int(lib.harp_embedding_bags_wrong(ffi.cast("int64_t *", offsets), bags, count))
