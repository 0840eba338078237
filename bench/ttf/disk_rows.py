"""Row disk: a table four times as large as its memory, beside a lower bound of any table's time.

The bound is the larger of two times: the step of the same table in memory, and random reads of as
many pages as a step with the cap reads, 64 at once, from a file of the same size. Batches do not
repeat, because the rows of a few batches would fit into memory. The file lies in HARP_BENCH_DISK,
by default in the folder for temporary files.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bench.arms import Sample
from bench.comparison import ArmRow
from bench.rows import by_id
from bench.subject import BenchError
from bench.ttf.embedding_rows import BAGS, DIM, IDS, far, filled, zipf_ids
from harp._cnet import ffi, lib
from harp.ttf.embedding import Adam, DynamicEmbeddingBag, TableOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.arms import Bench
    from bench.comparison import Arms

ROWS, TIMES = 2_000_000, 4
"""Rows, and the table's bytes over the cap."""
WARM = 60
"""Steps after which memory holds the rows that are used most."""
AT_ONCE = 1024


def folder() -> str:
    """Give the folder of the file."""
    return os.environ.get("HARP_BENCH_DISK") or tempfile.gettempdir()


class Steps:
    """Training steps on ids that are new each time; the next batch's rows are read beside them."""

    def __init__(self, **settings: Any) -> None:
        self.bag = DynamicEmbeddingBag(DIM, mode="sum", optimizer=Adam(), **settings)
        filled(self.bag, ROWS)
        self._optimizer, self._seeds, self.steps = TableOptimizer(self.bag), count(), 0
        self._next: torch.Tensor | None = None

    def make(self, seconds: float, least: int = 1) -> float:
        """Make steps, and give the milliseconds of one."""
        begun, ids, spent = self.steps, self._next, 0.0
        if ids is None:
            ids = self._batch()
        while spent < seconds or self.steps - begun < least:
            following = self._batch()
            began = time.perf_counter()
            rows = self.bag(ids)
            self.bag.prefetch(following)
            rows.backward(torch.ones_like(rows))
            self._optimizer.step()
            self._optimizer.zero_grad()
            spent += time.perf_counter() - began
            ids, self.steps = following, self.steps + 1
        self._next = ids
        return 1e3 * spent / (self.steps - begun)

    def _batch(self) -> torch.Tensor:
        return far(zipf_ids(BAGS * IDS, ROWS, next(self._seeds)).reshape(BAGS, IDS))


class Reads:
    """Random reads of pages of a file that is full."""

    def __init__(self, page_bytes: int, pages: int) -> None:
        self._pages, self._page_bytes = pages, page_bytes
        self._why = ffi.new("char[]", lib.HARP_STORE_WHY_BYTES)
        self._pool = lib.harp_page_pool_open(page_bytes, AT_ONCE, self._why)
        self._file = lib.harp_page_file_open(os.fsencode(folder()), page_bytes, pages,
                                             lib.HARP_PAGE_IO_AUTO, self._why)
        if ffi.NULL in (self._pool, self._file):
            raise BenchError(ffi.string(self._why).decode())
        for slot in range(AT_ONCE):
            lib.harp_page_take(self._pool, slot)
        self._memory = [lib.harp_page_bytes(self._pool, slot) for slot in range(AT_ONCE)]
        for at in range(0, pages, AT_ONCE):
            self._move(range(at, min(at + AT_ONCE, pages)), lib.harp_page_file_write)
        self._random = np.random.default_rng(5)

    def _move(self, pages: Any, begin: Callable[..., None]) -> None:
        for memory, page in zip(self._memory, pages, strict=False):
            begin(self._file, page, memory)
        for page in pages:
            if lib.harp_page_file_wait(self._file, page, self._why):
                raise BenchError(ffi.string(self._why).decode())

    def seconds_a_page(self, seconds: float) -> float:
        """Read for a while."""
        spent, done = 0.0, 0
        while spent < seconds:
            pages = self._random.choice(self._pages, AT_ONCE, replace=False).tolist()
            began = time.perf_counter()
            self._move(pages, lib.harp_page_file_read)
            spent, done = spent + time.perf_counter() - began, done + AT_ONCE
        return spent / done

    def close(self) -> None:
        """Give the file back."""
        lib.harp_page_file_close(self._file)
        for slot in range(AT_ONCE):
            lib.harp_page_give(self._pool, slot)
        lib.harp_page_pool_close(self._pool)


@contextmanager
def on_disk(bench: Bench) -> Iterator[Arms]:
    """Train a table on disk and one in memory."""
    whole = Steps()
    table = whole.bag.table
    capped = Steps(memory_bytes=ROWS * 4 * table.floats // TIMES, folder=folder())
    for steps in (whole, capped):
        steps.make(0, WARM)
    page_bytes = capped.bag.table.page_bytes
    reads = Reads(page_bytes, ROWS * 4 * table.floats // page_bytes)
    read, made = capped.bag.table.pages_read, capped.steps

    def ours() -> Sample:
        ms = capped.make(bench.seconds)
        pages = (capped.bag.table.pages_read - read) / (capped.steps - made)
        return Sample(ms, more={"pages": pages})

    def reference() -> Sample:
        pages = (capped.bag.table.pages_read - read) / max(capped.steps - made, 1)
        in_memory = whole.make(bench.seconds)
        by_reads = 1e3 * reads.seconds_a_page(bench.seconds) * pages
        return Sample(max(in_memory, by_reads), more={"in memory": in_memory, "reads": by_reads})

    try:
        capped.make(0, 2)
        yield {"on disk": ours, "memory or reads": reference}
    finally:
        reads.close()


ROWS_BY_ID = by_id((
    ArmRow("disk", "step, table 4 times its memory, Zipf 1.05", on_disk, "on disk", unit="ms",
           against=("memory or reads",), target=1.3, lower=True),
))
