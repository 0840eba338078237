"""Pages on an accelerator: a device of torch that has memory of its own.

A CPU shows a page at addresses of its own (`cnet/store/page_pool.h`). Torch alone cannot map an
accelerator's memory so: there the device's pages lie in one tensor, in any slots, and a parameter
is put together while an operator uses it, by copies within the device:

    host pages --pinned buffer, stream of copies--> slots of the device --> the parameter, whole
                                                    gradients, by parts <-- its gradient

Two streams touch the slots, that of operators and that of copies. Each waits for the other's
event: a copy for the operators before it (`mark`), an operator for the last copy to its slots
(`arrived`).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from harp._cnet import ffi
from harp.angelptm.cache import Cache, StoreError
from harp.angelptm.config import ConfigError
from harp.angelptm.page_plan import DEVICE

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from harp.angelptm.page_plan import Move, Place
    from harp.angelptm.pages import Layout

BUFFERS = 4
"""Pinned buffers, hence copies to the device that are under way at once."""
UPDATE_PAGES = 4
"""Pages that an update on the device needs beside those that it changes."""


class Buffer:
    """A pinned page on the host, and the copy that uses it."""

    def __init__(self, page_bytes: int) -> None:
        self.bytes = torch.empty(page_bytes, dtype=torch.uint8, pin_memory=True)
        self.address = self.bytes.data_ptr()
        self.event: torch.Event | None = None

    def wait(self) -> None:
        """Wait until no copy uses it."""
        if self.event is not None:
            self.event.synchronize()
            self.event = None


class DeviceCache(Cache):
    """Pages in their tiers; the first tier is an accelerator's memory."""

    def __init__(self, device: torch.device, layout: Layout, *given: Any) -> None:
        self.device, self._page_bytes = device, layout.page_bytes
        self._copies = torch.Stream(device)
        self._used: torch.Event | None = None
        """After all that operators have done with slots so far."""
        self._arrived: dict[int, torch.Event] = {}
        """The last copy to each slot."""
        self._taken: set[int] = set()
        self._turn = 0
        self.changes = 0
        """Times that pages were opened, to be changed beside the operators."""
        super().__init__(layout, *given)
        self._buffers = [Buffer(layout.page_bytes) for _ in range(BUFFERS)]
        self._lent = [Buffer(layout.page_bytes) for _ in range(2 + layout.states)]
        """Memory that updates work on, in place of pages on the device."""
        self.mark()

    def _open_device(self, pages: int) -> Any:
        try:
            self.memory = torch.zeros(pages, self._page_bytes, dtype=torch.uint8,
                                      device=self.device)
        except torch.OutOfMemoryError:
            raise StoreError(f"{pages} pages of {self._page_bytes} bytes cannot be had on "
                             f"{self.device}: angelptm.device_bytes bounds them") from None
        return ffi.NULL

    def close(self) -> None:
        """Give all memory back."""
        self._copies.synchronize()
        super().close()
        self.memory = torch.empty(0, dtype=torch.uint8, device=self.device)

    def mark(self) -> None:
        """Let copies that begin later wait for the operators of this thread so far."""
        self._used = torch.accelerator.current_stream().record_event()

    def arrived(self, page: int) -> torch.Tensor:
        """Give a page's bytes on the device to the operators that this thread runs from now on."""
        tier, slot = self.where[page]
        assert tier == DEVICE
        if (event := self._arrived.get(slot)) is not None:
            torch.accelerator.current_stream().wait_event(event)
        return self.memory[slot]

    def address(self, page: int) -> int:
        """The address of a page that is on the host."""
        assert self.where[page][0] != DEVICE
        return super().address(page)

    @contextmanager
    def opened(self, pages: Sequence[int], changed: Sequence[int], *, anywhere: bool = False,
               ) -> Iterator[Sequence[int] | Sequence[torch.Tensor]]:
        """Give addresses at which pages can be read, and some of them changed.

        If they may be ``anywhere`` and all are on the device, their bytes there are given instead.
        """
        slots = [slot if tier == DEVICE else None for tier, slot in map(self.where.__getitem__,
                                                                        pages)]
        if anywhere and None not in slots:
            with self._copies:
                self._copies.wait_event(self._used)
                yield [self.memory[slot] for slot in slots]
                over = self._copies.record_event()
            self._arrived.update((slot, over) for slot in slots if slot is not None)
            self.changes += 1
            return
        addresses = []
        for slot, page, buffer in zip(slots, pages, self._lent, strict=False):
            if slot is not None:
                self._read(slot, buffer)
            addresses.append(self.address(page) if slot is None else buffer.address)
        yield addresses
        for slot, page, buffer in zip(slots, pages, self._lent, strict=False):
            if slot is not None and page in changed:
                self._write(slot, buffer)
        self.changes += 1

    def _take(self, place: Place) -> None:
        if place[0] == DEVICE:
            assert place[1] not in self._taken
            self._taken.add(place[1])
        else:
            super()._take(place)

    def _give(self, place: Place) -> None:
        if place[0] == DEVICE:
            self._taken.remove(place[1])
        else:
            super()._give(place)

    def _show(self, page: int, place: Place) -> None:
        pass

    def _hide(self, page: int, place: Place) -> None:
        pass

    def _copy(self, move: Move) -> None:
        buffer = self._buffers[self._turn]
        self._turn = (self._turn + 1) % BUFFERS
        (_, slot), host = min(move.source, move.target), max(move.source, move.target)
        memory = self._bytes_of(host)
        if move.target[0] == DEVICE:
            buffer.wait()
            ffi.memmove(ffi.cast("void *", buffer.address), memory, self._page_bytes)
            self._write(slot, buffer)
        else:
            self._read(slot, buffer)
            ffi.memmove(memory, ffi.cast("void *", buffer.address), self._page_bytes)

    def _write(self, slot: int, buffer: Buffer) -> None:
        """Begin to copy a buffer to the device."""
        with self._copies:
            self._copies.wait_event(self._used)
            self.memory[slot].copy_(buffer.bytes, non_blocking=True)
            buffer.event = self._arrived[slot] = self._copies.record_event()

    def _read(self, slot: int, buffer: Buffer) -> None:
        """Copy a slot of the device to a buffer; copies before it are over by then."""
        with self._copies:
            self._copies.wait_event(self._used)
            buffer.bytes.copy_(self.memory[slot], non_blocking=True)
            buffer.event = self._copies.record_event()
        buffer.wait()


class Wholes:
    """Parameters on an accelerator; a parameter has memory only while an operator uses it."""

    def __init__(self, cache: DeviceCache, dtype: torch.dtype) -> None:
        self._cache, self._dtype = cache, dtype
        self._shapes: list[torch.Size] = []
        self._bytes: list[torch.Tensor] = []
        self._here: set[int] = set()
        self._filled: set[int] = set()
        self._seen = 0
        """Changes of pages before these were filled."""
        self.most_bytes = 0
        """Most memory that they had at once."""

    @staticmethod
    def key(tensor: torch.Tensor) -> int:
        """Say which memory a tensor has; views have their parameter's."""
        found: int = tensor.untyped_storage()._cdata
        return found

    def make(self, shape: torch.Size) -> torch.Tensor:
        """Make the next parameter, which has no memory yet."""
        layout = self._cache.layout
        self._shapes.append(shape)
        bytes_n = layout.sizes[len(self._bytes)] * layout.element_bytes
        own = torch.empty(bytes_n, dtype=torch.uint8, device=self._cache.device)
        self._bytes.append(own)
        whole = own.view(self._dtype).view(shape)
        own.untyped_storage().resize_(0)
        return whole

    def lend(self, numbers: Iterable[int]) -> None:
        """Have memory for these parameters, too, without content, so that torch makes views."""
        for number in set(numbers) - self._here:
            self._here.add(number)
            whole = self._bytes[number]
            whole.untyped_storage().resize_(whole.numel())
        self.most_bytes = max(self.most_bytes, sum(self._bytes[one].numel() for one in self._here))

    def have(self, numbers: Iterable[int]) -> None:
        """Have these parameters whole, and no other; their pages are on the device."""
        wanted = set(numbers)
        if self._seen != self._cache.changes:
            self._seen = self._cache.changes
            self._filled.clear()
        for number in self._here - wanted:
            self._bytes[number].untyped_storage().resize_(0)
        self._here &= wanted
        self._filled &= wanted
        self.lend(wanted)
        for number in wanted - self._filled:
            for whole, own in self._parts(number):
                whole.copy_(own)
        self._filled = wanted

    def put_back(self, numbers: Iterable[int]) -> None:
        """Write parameters, which an operator has changed, to their pages."""
        for number in numbers:
            for whole, own in self._parts(number):
                own.copy_(whole)
        self._cache.mark()

    def _parts(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Give the bytes of a parameter, whole and in each of its pages."""
        for page, at, begin, end in self._cache.layout.parts_of(number):
            yield self._bytes[number][begin:end], self._cache.arrived(page)[at:at + end - begin]

    def keep_gradient(self, number: int, gradient: torch.Tensor, sums: Container[int]) -> None:
        """Write a gradient to its pages, which are on the device, or add it to these sums."""
        pages, parts = self._cache.layout.pages_of(number), self._gradient(number)
        flat = gradient.contiguous().view(-1).split([len(own) for own in parts])
        for page, own, part in zip(pages, parts, flat, strict=True):
            (own.add_ if page in sums else own.copy_)(part)

    def norm(self, number: int) -> torch.Tensor:
        """Give the norm of a gradient in its pages."""
        whole = torch.cat(self._gradient(number)).view(self._shapes[number])
        return torch.linalg.vector_norm(whole, dtype=torch.float32)

    def _gradient(self, number: int) -> list[torch.Tensor]:
        return [self._cache.arrived(page)[at:at + end - begin].view(self._dtype)
                for page, at, begin, end in self._cache.layout.parts_of(number, gradient=True)]


def find_device(wanted: str, ranks: int) -> torch.device:
    """Give the device that trains: torch's accelerator, unless there is none or the CPU is wanted.

    Raises ConfigError.
    """
    if wanted == "cpu" or not torch.accelerator.is_available():
        return torch.device("cpu")
    if ranks > 1:
        raise ConfigError("pages of several ranks are not possible on an accelerator yet: "
                          "angelptm.device: cpu trains on host memory, and one rank on the device")
    found = torch.accelerator.current_accelerator()
    assert found is not None
    return torch.device(found.type, torch.accelerator.current_device_index())


def room_bytes(model: torch.nn.Module, numbers: Mapping[int, int], layout: Layout) -> int:
    """Memory of the device beside its pages: the parameters of a module, and an update's values."""
    own = [sum(layout.sizes[numbers[id(one)]] for one in module.parameters(recurse=False)
               if id(one) in numbers) for module in model.modules()]
    return max(own) * layout.element_bytes + UPDATE_PAGES * layout.page_bytes


def bring(tensor: torch.Tensor, there: torch.Tensor) -> None:
    """Give a tensor of a model, which keeps its object, other memory, on the device or not."""
    try:
        tensor.data = there
    except RuntimeError:  # torch has no such way between a CPU and a device that it does not know
        fresh = there.requires_grad_(tensor.requires_grad)
        if isinstance(tensor, torch.nn.Parameter):
            fresh = torch.nn.Parameter(there, tensor.requires_grad)
        torch.utils.swap_tensors(tensor, fresh)
