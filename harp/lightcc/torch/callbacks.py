"""Callbacks of torch's futures, and the collectives that they call.

All ranks must make a group's calls in the same order. A callback may call a collective, too, as
those of torch's PowerSGD do. It would come between the program's calls wherever its rank is by
then: ranks would add up different tensors, and never notice. So

- one thread runs a group's callbacks, in the order in which the program chained them, even if the
  future is done by then (torch would run them in the thread that chains them);
- their collectives use a group of their own, of the same ranks, made when it is first needed. So do
  the collectives of callbacks of these calls.

Futures become done in one more thread, since a callback may wait for a call that it has made. What
torch itself chains to a future (`torch.futures.collect_all`) is done there.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from harp.lightcc.torch.eager import eager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harp.lightcc.group import Group

LINGER_S = 1.0
"""So long a thread without work waits for more before it ends."""


class _Here(threading.local):
    """Groups with callbacks in this thread, outermost first; none in the program's own."""

    origin = ""


_HERE = _Here()


class Worker:
    """A thread that runs the work it is given, in this order; it ends when it has none."""

    def __init__(self, name: str, origin: str) -> None:
        self._name, self._origin = name, origin
        self._queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._beginning = threading.Lock()
        self._serves = False

    def submit(self, work: Callable[[], object]) -> None:
        """Have something done, which must not raise anything."""
        with self._beginning:
            self._queue.put(work)
            if not self._serves:
                self._serves = True
                threading.Thread(target=self._serve_queue, daemon=True, name=self._name).start()

    def _serve_queue(self) -> None:
        _HERE.origin = self._origin
        while work := self._take_work():
            work()
            del work  # with what it holds

    def _take_work(self) -> Callable[[], object] | None:
        with contextlib.suppress(queue.Empty):
            return self._queue.get(timeout=LINGER_S)
        with self._beginning:
            if self._queue.empty():
                self._serves = False
                return None
            return self._queue.get()


class Lane:
    """State of calls of one origin: their group, and the threads of their futures."""

    def __init__(self, origin: str, name: str) -> None:
        self.origin = origin
        self.group: Group | None = None
        self.making = threading.Lock()
        within = f"{origin}/{name}"
        self.completing = Worker("lightcc futures", within)
        self.chained = Worker("lightcc callbacks", within)


class Callbacks:
    """The groups of one process group: the program's, and those of its callbacks.

    Args:
        make: makes a group of all of its ranks; the argument is a prefix of its own for each.

    """

    def __init__(self, make: Callable[[str], Group]) -> None:
        self._make = make
        self.name = ""
        """The process group's, which must be the same at all ranks."""
        self._lanes: dict[str, Lane] = {}
        self._adding = threading.Lock()
        self._is_closed = False
        self.program_group = make("")

    @property
    def group(self) -> Group:
        """The group that this thread's calls go by."""
        return self._group_of(self.lane()) if _HERE.origin else self.program_group

    def lane(self) -> Lane:
        """Give what belongs to this thread's calls."""
        origin = _HERE.origin
        with self._adding:
            lane = self._lanes.get(origin)
            if lane is None:
                lane = self._lanes[origin] = Lane(origin, self.name)
            return lane

    def _group_of(self, lane: Lane) -> Group:
        with lane.making:
            if lane.group is None:
                if self._is_closed:
                    return self.program_group  # which says so
                lane.group = self._make(f"callbacks{lane.origin}/")
                if self._is_closed:  # meanwhile, by a thread that did not know of it
                    lane.group.close()
            return lane.group

    def groups(self) -> Iterator[Group]:
        """Give those that there are."""
        yield self.program_group
        for lane in list(self._lanes.values()):
            if lane.group is not None:
                yield lane.group

    def close(self) -> None:
        """Leave all groups."""
        self._is_closed = True
        for group in self.groups():
            group.close()


def here() -> str:
    """Return the origin of the callbacks that this thread runs, for `as_in`."""
    return _HERE.origin


def as_in(origin: str, call: Callable[..., Any], *args: Any) -> Any:
    """Call something as the thread would that was `here` then."""
    before, _HERE.origin = _HERE.origin, origin
    try:
        return call(*args)
    finally:
        _HERE.origin = before


def failed_value(error: Exception) -> torch.Tensor:
    """Make a tensor that raises the error in every use: the value of a failed future.

    `torch.futures.Future.set_exception` makes C++ see a *successful* future with the exception as
    its value, and only Python's ``wait`` raises that. C++ then looks for tensors in it, as DDP's
    reducer does, and `torch.futures.collect_all` hands it to the program. Where C++ finds a tensor,
    it says nothing of its own, and the first operation raises.
    """
    def raise_error(*_: Any, **__: Any) -> Any:
        raise error
    kind = type("FailedValue", (torch.Tensor,), dict.fromkeys(
        ("__torch_function__", "__torch_dispatch__"), classmethod(raise_error)))
    value: torch.Tensor = torch.Tensor._make_wrapper_subclass(kind, (0,))
    return value


@eager
class LightFuture(torch.futures.Future):
    """A future that runs its callbacks on ``lane``, in the order in which they are chained."""

    def __init__(self, lane: Lane, devices: Any = None) -> None:
        super().__init__(devices=devices)
        self._lane, self._devices = lane, devices

    def then(self, callback: Callable[[Any], Any]) -> torch.futures.Future[Any]:
        """Have a callback run when this is done; gives the future of what it returns."""
        chained = LightFuture(self._lane, self._devices)
        self._lane.chained.submit(partial(self._run_callback, callback, chained))
        return chained

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Have a callback run when this is done."""
        self.then(callback)

    def set_exception(self, result: Exception) -> None:
        """Fail it, so that neither Python nor C++ takes the error for a result."""
        def raise_error(_: object) -> None:
            raise result
        self._set_unwrap_func(raise_error)
        self.set_result(failed_value(result))

    def _run_callback(self, callback: Callable[[Any], Any], chained: LightFuture) -> None:
        with contextlib.suppress(Exception):  # the callback sees it
            self.wait()
        try:
            chained.set_result(callback(self))
        except Exception as error:  # the chained future reports it
            chained.set_exception(error)
