"""The accelerator that torch has, such as a GPU, and copies between it and the host's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from harp.lightcc.torch_base.tensors import writing

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Accelerator:
    """The accelerator that torch.accelerator has, of whatever kind.

    Copies go through pinned memory, on a stream of their own for each device.
    """

    def __init__(self) -> None:
        found = torch.accelerator.current_accelerator()
        self._kind = None if found is None else found.type
        module = None if found is None else torch.get_device_module(found)
        self._is_initialized = getattr(module, "is_initialized", lambda: False)
        self._sides: dict[torch.device, torch.Stream] = {}

    def are_used(self) -> bool:
        """Whether there may be a tensor on it."""
        return bool(self._is_initialized())

    def holds(self, value: Any) -> bool:
        """Whether it is a tensor on it."""
        return isinstance(value, torch.Tensor) and value.device.type == self._kind

    def current_stream(self, device: torch.device) -> torch.Stream:
        """Give the stream of the caller's kernels."""
        return torch.accelerator.current_stream(device)

    def side_stream(self, device: torch.device) -> torch.Stream:
        """Give the stream of copies."""
        if device not in self._sides:
            self._sides[device] = torch.Stream(device)
        return self._sides[device]

    def on_stream(self, stream: torch.Stream) -> AbstractContextManager[Any]:
        """Make a stream the current one."""
        made: AbstractContextManager[Any] = stream
        return made

    def record(self, stream: torch.Stream) -> torch.Event:
        """Give an event of all that the stream has been given so far."""
        event = torch.Event(stream.device, blocking=True)  # a thread that waits for it sleeps
        event.record(stream)
        return event

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Give memory for a copy on the host."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def copy(self, stream: torch.Stream, into: torch.Tensor, source: torch.Tensor) -> None:
        """Copy on a stream, between host and accelerator."""
        with stream, writing(into):
            into.copy_(source, non_blocking=True)
        (source if into.is_cpu else into).record_stream(stream)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Give a copy on the host of what the caller's kernels make of a tensor; blocks for it."""
        stream, copy = self.side_stream(tensor.device), self.pinned(tensor)
        stream.wait_event(self.record(self.current_stream(tensor.device)))
        self.copy(stream, copy, tensor)
        self.record(stream).synchronize()
        return copy

    def write(self, tensor: torch.Tensor, memory: torch.Tensor) -> None:
        """Copy pinned memory to a tensor that no kernel uses; blocks until it is there."""
        stream = self.side_stream(tensor.device)
        self.copy(stream, tensor, memory)
        self.record(stream).synchronize()
