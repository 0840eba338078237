"""Staging of tensors on an accelerator, such as a GPU, through pinned memory on the host.

1. The side stream of the device waits for what the caller's stream has been given so far, and
   copies what is to be read out to the host.
2. A thread waits for these copies and begins the collective as one of tensors on the host. Once
   there is that thread, all calls of the group go by it, so that they keep their order.
3. When the collective is over, its thread begins the copies back, on the side stream.
4. `Work.wait` blocks the caller until then, and lets its stream wait for these copies.

So copies run beside the caller's kernels, and nothing but ``wait`` blocks the caller. Memory is
given out anew only when the copies are over: pinned memory by torch's allocator, which sees them on
their stream, that of tensors by ``record_stream``.
"""

from __future__ import annotations

import enum
import functools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    import torch

    from harp.lightcc.torch.work import LightWork


class First(enum.Flag):
    """Fate of the first argument of a call; all others are read."""

    READ = enum.auto()
    WRITTEN = enum.auto()
    BOTH = READ | WRITTEN


class Devices(Protocol):
    """Operations of an accelerator for staging; streams and events are torch's."""

    def are_used(self) -> bool:
        """Whether there may be a tensor on a GPU."""

    def holds(self, value: Any) -> bool:
        """Whether it is a tensor on a GPU."""

    def current_stream(self, device: Any) -> Any:
        """Give the stream of the caller's kernels."""

    def side_stream(self, device: Any) -> Any:
        """Give the stream of copies."""

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the current one."""

    def record(self, stream: Any) -> Any:
        """Give an event of all that the stream has been given so far."""

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Give memory for a copy on the host."""

    def copy(self, stream: Any, into: torch.Tensor, source: torch.Tensor) -> None:
        """Copy on a stream, between host and GPU."""


class Stage:
    """The copies of one call: what torch gave it, with copies on the host in place of tensors."""

    def __init__(self, devices: Devices, args: tuple[Any, ...], first: First) -> None:
        self._devices = devices
        leaves, shape = pytree.tree_flatten(args)
        copies = [devices.pinned(leaf) if devices.holds(leaf) else leaf for leaf in leaves]
        self.args = pytree.tree_unflatten(copies, shape)
        pairs = list(zip(leaves, copies, strict=True))
        end = len(pytree.tree_leaves(args[:1]))
        out = pairs if First.READ in first else pairs[end:]
        back = pairs[:end] if First.WRITTEN in first else []
        self._back = [(tensor, copy) for tensor, copy in back if tensor is not copy]
        self.devices = sorted({leaf.device for leaf in leaves if devices.holds(leaf)}, key=str)
        for device in self.devices:  # what the caller's kernels write or still read
            self._side_stream(device).wait_event(devices.record(devices.current_stream(device)))
        for tensor, copy in out:
            if tensor is not copy:
                devices.copy(self._side_stream(tensor.device), copy, tensor)
        self._out = self._record_events()
        self._came: list[Any] = []

    def _side_stream(self, device: Any) -> Any:
        return self._devices.side_stream(device)

    def _record_events(self) -> list[Any]:
        return [self._devices.record(self._side_stream(device)) for device in self.devices]

    def wait_out(self) -> None:
        """Block until the copies on the host are there."""
        for event in self._out:
            event.synchronize()

    def copy_back(self) -> None:
        """Begin to copy results back, when the collective is over."""
        for tensor, copy in self._back:
            self._devices.copy(self._side_stream(tensor.device), tensor, copy)
        self._came = self._record_events()

    def join(self) -> None:
        """Let the caller's streams wait for the results."""
        for device, event in zip(self.devices, self._came, strict=True):
            self._devices.current_stream(device).wait_event(event)

    def on_sides(self) -> Iterable[AbstractContextManager[Any]]:
        """Give what makes the streams of the copies the current ones."""
        return [self._devices.on_stream(self._side_stream(device)) for device in self.devices]


class Stager:
    """Begins a group's calls in their order, those of tensors on GPUs when their copies are out."""

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self._thread: ThreadPoolExecutor | None = None
        self._here = threading.local()

    def takes(self, args: tuple[Any, ...]) -> bool:
        """Whether a call must go by it; not what another call consists of."""
        if self._thread is not None:
            return not getattr(self._here, "staging", False)
        return self.devices.are_used() and any(
            self.devices.holds(leaf) for leaf in pytree.tree_leaves(args))

    def begin(self, call: Callable[..., LightWork], args: tuple[Any, ...],
              first: First) -> tuple[Future[Any], Stage]:
        """Begin a call when its copies are out; gives what is done when those back have begun."""
        if any(self.devices.holds(leaf) and leaf.is_sparse for leaf in pytree.tree_leaves(args)):
            raise ValueError("the backend lightcc takes sparse tensors only on the CPU")
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "lightcc staging")
        over: Future[Any] = Future()
        stage = Stage(self.devices, args, first)
        self._thread.submit(self._carry_out, call, stage, over)
        return over, stage

    def _carry_out(self, call: Callable[..., LightWork], stage: Stage, over: Future[Any]) -> None:
        self._here.staging = True
        try:
            stage.wait_out()
            begun = call(*stage.args).over
        except Exception as error:  # no other code reports it
            over.set_exception(error)
        else:
            begun.add_done_callback(functools.partial(self._end_call, stage, over))

    def _end_call(self, stage: Stage, over: Future[Any], begun: Future[Any]) -> None:
        try:
            result = begun.result()
            stage.copy_back()
        except Exception as error:
            over.set_exception(error)
        else:
            over.set_result(result)

    def close(self) -> None:
        """Begin what was asked for, and no more."""
        if self._thread is not None:
            self._thread.shutdown()
