"""Works: torch's handles of collectives under way, and their futures.

The group's thread completes a work; ``wait`` blocks the caller, and futures may be chained.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from harp.lightcc.call_queue import OVER
from harp.lightcc.torch.callbacks import LightFuture
from harp.lightcc.torch.eager import eager
from harp.lightcc.torch_base.tensors import nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harp.lightcc.torch.callbacks import Callbacks
    from harp.lightcc.torch.staging import Stage

    Tensors = Sequence[torch.Tensor]


def _call_once(tell: Callable[[Future[Any]], Any]) -> Callable[[Future[Any]], Any]:
    """Forget the callback when it has run: it refers to a work, which refers to the future."""
    kept = [tell]

    def call(future: Future[Any]) -> None:
        kept.pop()(future)
    return call


@eager
class LightWork(dist.Work):
    """A work that is over when all ``futures`` are and ``finish`` has been called."""

    callbacks: Callbacks
    """Callbacks of its process group."""

    def __init__(self, futures: Sequence[Future[Any]], results: Tensors | list[Tensors],
                 finish: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._results = results
        self._finish = finish
        self._torch_future: torch.futures.Future[Any] | None = None
        self._futures = list(futures)
        if len(self._futures) == 1 and finish in {None, nothing}:
            self.over = self._futures[0]
            return
        self._left, self._counting = len(futures), threading.Lock()
        self.over = Future()
        for future in self._futures:
            future.add_done_callback(_call_once(self._one_is_over))
        if not futures:
            self._complete_work()

    def _one_is_over(self, future: Future[Any]) -> None:
        with self._counting:  # one future may be over before the callback of the next is added
            self._left -= 1
            is_last = not self._left
            if future.exception() is not None and not self.over.done():
                self.over.set_exception(future.exception())
        if is_last and not self.over.done():
            self._complete_work()

    def _complete_work(self) -> None:
        try:
            if self._finish:
                self._finish()
        except Exception as error:  # no other code reports it
            self.over.set_exception(error)
        else:
            self.over.set_result(None)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until it is over; raises its error."""
        seconds = timeout.total_seconds() or None
        try:
            self.over.result(seconds)
        except concurrent.futures.TimeoutError:
            raise RuntimeError(f"the collective was not over after {seconds:g} s") from None
        return True

    def is_completed(self) -> bool:
        """Whether it is over."""
        return self.over.done()

    def is_success(self) -> bool:
        """Whether it is over without an error."""
        return self.over.done() and self.over.exception() is None

    def exception(self) -> Any:
        """Return its error, or None."""
        return self.over.exception() if self.over.done() else None

    def result(self) -> Any:
        """Return the tensors with the result."""
        return self._results

    def source_rank(self) -> int:
        """Return the rank that a message from any rank came from."""
        return int(self._futures[0].result())

    _source_rank = source_rank  # torch's recv asks by this name

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the tensors; callbacks chained to it may call collectives."""
        if self._torch_future is None:
            lane = self.callbacks.lane()
            self._torch_future = LightFuture(lane, self._devices())
            self.over.add_done_callback(
                _call_once(lambda _: lane.completing.submit(self._tell_torch)))
        return self._torch_future

    def _devices(self) -> list[torch.device] | None:
        return None

    def _tell_torch(self) -> None:
        assert self._torch_future is not None
        error = self.over.exception()
        if error is None:
            self._torch_future.set_result(self._results)
        else:
            self._torch_future.set_exception(error)


@eager
class DoneWork(LightWork):
    """A work that was over before its call returned."""

    over = OVER

    def __init__(self, results: Tensors | list[Tensors]) -> None:
        dist.Work.__init__(self)
        self._results = results
        self._futures = [OVER]
        self._torch_future = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: ARG002  (torch gives it)
        """Return at once."""
        return True


def work_of(future: Future[None], results: Tensors) -> LightWork:
    """Return the work of a call that writes the results in place."""
    return DoneWork(results) if future is OVER else LightWork([future], results)


@eager
class StagedWork(LightWork):
    """A work on copies of tensors on GPUs (`harp.lightcc.torch.staging`)."""

    def __init__(self, over: Future[Any], results: Any, stage: Stage) -> None:
        super().__init__([over], results)
        self._stage = stage

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until it is over; the caller's streams wait for the results' copies."""
        super().wait(timeout)
        self._stage.join()
        return True

    def _devices(self) -> list[torch.device] | None:
        return self._stage.devices

    def _tell_torch(self) -> None:
        with contextlib.ExitStack() as streams:  # a waiter of the future waits for them
            for stream in self._stage.on_sides():
                streams.enter_context(stream)
            super()._tell_torch()


def join_works(works: Sequence[LightWork], results: Tensors) -> LightWork:
    """Make one work of several."""
    return LightWork([work.over for work in works], results)
