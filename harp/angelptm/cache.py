"""Pages in their tiers: memory of the device and of the host, and a file; and moves between them.

`Cache` does what it is bid and knows where each page is. `Demand` brings pages when they are asked
for, which is how a step runs that has no plan: the first one, or one that does something new.
`harp.angelptm.worker` runs plans.
"""

from __future__ import annotations

import ctypes
import logging
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harp._cnet import ffi, lib
from harp.angelptm.page_plan import (
    DEVICE,
    DISK,
    HOST,
    NOWHERE,
    Capacities,
    Move,
    Rates,
    Sharing,
    Space,
    first_placement,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from harp.angelptm.page_plan import Place
    from harp.angelptm.pages import Layout

log = logging.getLogger("harp.angelptm")

IO = {"auto": lib.HARP_PAGE_IO_AUTO, "io_uring": lib.HARP_PAGE_IO_RING,
      "threads": lib.HARP_PAGE_IO_THREADS}


SAMPLE, ROUNDS = 8, 3
"""Pages of a measurement of rates, and how often it is made; the fastest counts."""


class StoreError(OSError):
    """A page could not be had, read or written; the message is one sentence."""


class Cache:
    """The pages of a layout. One thread at a time moves them."""

    def __init__(self, layout: Layout, capacities: Capacities, folder: str | None = None,
                 io: str = "auto", sharing: Sharing | None = None, later: int = 0) -> None:
        self.layout, self.capacities, self.sharing = layout, capacities, sharing
        self.gather: Callable[[int, int], None] | None = None
        """Fills a page of the window that was nowhere from all ranks' parts: number and address."""
        self.where: list[Place] = list(first_placement(layout.pages, capacities, layout.apart,
                                                       later))
        self._busy: dict[Place, Move] = {}
        self._why = ffi.new("char[]", lib.HARP_STORE_WHY_BYTES)
        size, self._file = layout.page_bytes, ffi.NULL
        shown = 2 * layout.shown * size
        self._pools: list[Any] = []
        self._window: Any = ffi.NULL
        # It stays as long as the process, since tensors may: what is hidden costs addresses only.
        self._window = self._made(lib.harp_page_window_open(shown, self._why))
        self._pools.append(self._open_device(capacities.device))
        self._pools.append(self._open_pool(capacities.host))
        if capacities.disk:
            self._file = self._made(lib.harp_page_file_open(
                str(folder).encode(), size, capacities.disk, IO[io], self._why))
            log.info("pages on disk: %s", self.disk_line())
        for page, (tier, slot) in enumerate(self.where):
            if tier < DISK:
                self._take((tier, slot))
                self._show(page, (tier, slot))

    def _open_pool(self, pages: int) -> Any:
        return self._made(lib.harp_page_pool_open(self.layout.page_bytes, pages, self._why)
                          ) if pages else ffi.NULL

    def _open_device(self, pages: int) -> Any:
        return self._open_pool(pages)

    def _made(self, made: Any) -> Any:
        if made == ffi.NULL:
            for pool in self._pools:
                lib.harp_page_pool_close(pool)
            lib.harp_page_window_close(self._window)  # no tensor has seen it
            raise StoreError(ffi.string(self._why).decode())
        return made

    def disk_line(self) -> str:
        """Say how the disk's pages are read and written; nothing, if there is no disk."""
        return "" if self._file == ffi.NULL else ffi.string(
            lib.harp_page_file_line(self._file)).decode()

    def close(self) -> None:
        """Give all memory back, and the file. Nothing may use pages any more."""
        lib.harp_page_file_close(self._file)
        self._file = ffi.NULL
        for move in {id(move): move for move in self._busy.values()}.values():
            lib.harp_page_return(self._pools[HOST], min(move.source, move.target)[1])
        self._busy.clear()
        for page, (tier, slot) in enumerate(self.where):
            if tier < DISK and self._pools[tier] != ffi.NULL:
                self._hide(page, (tier, slot))
        for pool in self._pools:
            lib.harp_page_pool_close(pool)
        self._pools = [ffi.NULL, ffi.NULL]

    @property
    def window(self) -> int:
        """The address of the window's first byte."""
        return int(ffi.cast("uintptr_t", lib.harp_page_window_base(self._window)))

    def _take(self, place: Place) -> None:
        lib.harp_page_take(self._pools[place[0]], place[1])

    def _give(self, place: Place) -> None:
        lib.harp_page_give(self._pools[place[0]], place[1])

    def _show(self, page: int, place: Place) -> None:
        if place[0] == DEVICE and page < 2 * self.layout.shown:
            failed = lib.harp_page_show(self._pools[DEVICE], place[1], self._window,
                                        page * self.layout.page_bytes)
            if failed:
                raise StoreError(-failed, "a page cannot be mapped; vm.max_map_count bounds it")

    def _hide(self, page: int, place: Place) -> None:
        if place[0] == DEVICE and page < 2 * self.layout.shown:
            assert lib.harp_page_hide(self._pools[DEVICE], place[1]) == 0

    def address(self, page: int) -> int:
        """The address of a page's bytes, which are in memory."""
        self.settle(self.where[page])
        return int(ffi.cast("uintptr_t", self._bytes_of(self.where[page])))

    def _bytes_of(self, place: Place) -> Any:
        return lib.harp_page_bytes(self._pools[place[0]], place[1])

    @contextmanager
    def opened(self, pages: Sequence[int], changed: Sequence[int], *, anywhere: bool = False,
               ) -> Iterator[Sequence[int] | Sequence[torch.Tensor]]:
        """Give addresses at which pages, which are in memory, can be read and changed."""
        del changed, anywhere
        yield [self.address(page) for page in pages]

    def mark(self) -> None:
        """Let moves that begin later wait for the operators of this thread so far."""

    def move(self, move: Move) -> None:
        """Make a move; one from or to the disk begins, and `settle` waits for its end."""
        self.settle(move.source)
        self.settle(move.target)
        assert self.where[move.page] == move.source
        if move.target[0] < DISK:
            self._take(move.target)
        if move.by_disk:
            self._begin(move)
        elif move.source[0] == NOWHERE:
            self._fill(move)
        else:
            self._hide(move.page, move.source)
            if move.copies:
                self._copy(move)
            if move.source[0] < DISK:
                self._give(move.source)
            self._show(move.page, move.target)
        self.where[move.page] = move.target

    def _copy(self, move: Move) -> None:
        """Copy a page between device and host."""
        (source, source_slot), (target, target_slot) = move.source, move.target
        lib.harp_page_copy(self._pools[target], target_slot, self._pools[source], source_slot)

    def _fill(self, move: Move) -> None:
        """Gather a page, or clear one of gradients."""
        address = int(ffi.cast("uintptr_t", self._bytes_of(move.target)))
        if move.empty:
            ctypes.memset(address, 0, self.layout.page_bytes)
        else:
            assert self.gather is not None
            self.gather(move.page, address)
        self._show(move.page, move.target)

    def measure(self) -> Rates:
        """Measure moves, by pages that go to free slots and come back; no thread moves others."""
        rates = Rates()
        taken = set(self.where)
        free = [[(tier, slot) for slot in range(self.capacities[tier])
                 if (tier, slot) not in taken] for tier in range(3)]
        for tier, name in ((DEVICE, "copy"), (HOST, "disk")):
            pages = [page for page, place in enumerate(self.where) if place[0] == tier]
            pairs = list(zip(pages, free[tier + 1], strict=False))[:SAMPLE]
            if pairs:
                took = min(self._round_trip(pairs) for _ in range(ROUNDS))
                rates = replace(rates, **{name: 2 * len(pairs) / took})
        return rates

    def _round_trip(self, pairs: list[tuple[int, Place]]) -> float:
        there = [Move(page, self.where[page], target, -1, empty=False) for page, target in pairs]
        back = [replace(move, source=move.target, target=move.source) for move in there]
        begun = time.perf_counter()
        for move in (*there, *back):
            self.move(move)
        self.settle()
        return time.perf_counter() - begun

    def _begin(self, move: Move) -> None:
        page, slot = max(move.source, move.target), min(move.source, move.target)[1]
        begin = lib.harp_page_file_write if move.target == page else lib.harp_page_file_read
        memory = self._bytes_of((HOST, slot))
        lib.harp_page_lend(self._pools[HOST], slot)
        begin(self._file, page[1], memory)
        self._busy[move.source] = self._busy[move.target] = move

    def settle(self, place: Place | None = None) -> None:
        """Wait for the read or write of a place, or for all. Raises StoreError."""
        if place is None:
            while self._busy:
                self.settle(next(iter(self._busy)))
            return
        move = self._busy.get(place)
        if move is None:
            return
        for busy in (move.source, move.target):
            self._busy.pop(busy, None)
        on_disk, (_, slot) = max(move.source, move.target), min(move.source, move.target)
        failed = lib.harp_page_file_wait(self._file, on_disk[1], self._why)
        lib.harp_page_return(self._pools[HOST], slot)
        if move.target == on_disk:
            lib.harp_page_give(self._pools[HOST], slot)
        if failed:
            raise StoreError(-failed, ffi.string(self._why).decode())


class Demand(Space):
    """Brings pages as they are asked for; the least recently used page makes room."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache.capacities, cache.where, cache.sharing)
        self._cache = cache
        self._used = [0] * len(self.where)
        self._now = 0

    def next_use(self, page: int, tier: int) -> float:
        """Guess by the last use."""
        del tier
        return -self._used[page]

    def moved(self, page: int, source: Place, target: Place, *, kept: bool) -> None:
        """Move at once."""
        empty = target[0] == NOWHERE or (source[0] == NOWHERE and self.source(page) is None)
        self._cache.move(Move(page, source, target, -1, empty, kept=kept))

    def have(self, pages: Sequence[int], lowest: int) -> None:
        """Have pages in a tier or above it."""
        self._now += 1
        self._cache.mark()
        self.bring(pages, lowest, [set(pages)])
        for page in pages:
            self._used[page] = self._now
            self._cache.settle(self._cache.where[page])
