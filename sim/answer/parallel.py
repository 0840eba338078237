"""Map a function over items on all cores that this process may use.

Workers are forked if the system allows it, so that they inherit what is already built. They end
with the process that forked them, however it ends.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from harp.parent import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MOST_WORKERS = 16
_shared: Any = None
"""First argument of every call in a worker."""


def map_shared(function: Callable[[Any, Item], Answer], shared: Any, items: Sequence[Item],
               workers: int | None = None) -> list[Answer]:
    """Give ``function(shared, item)`` of every item, in order.

    Args:
        function: a function of a module, so that workers can import it.
        shared: first argument of all calls; each worker receives it once.
        items: second argument of each call.
        workers: processes; 1: only this one; None: one for each core.
    """
    count = min(workers or _cores(), len(items))
    if count <= 1:
        return [function(shared, item) for item in items]
    with _pool(count, shared) as pool:
        return list(pool.map(_call, [function] * len(items), items))


def each_shared(function: Callable[[Any, Item], Answer], shared: Any, items: Sequence[Item],
                workers: int | None = None) -> Iterator[Answer]:
    """Yield the answers that `map_shared` gives, each as soon as it is there, in any order.

    Items that no worker has begun are dropped when the iterator is closed. A worker that is killed
    ends it with `BrokenProcessPool`.
    """
    count = min(workers or _cores(), len(items))
    if count <= 1:
        yield from (function(shared, item) for item in items)
        return
    with _pool(count, shared) as pool:
        try:
            for future in as_completed([pool.submit(_call, function, item) for item in items]):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _pool(count: int, shared: Any) -> Iterator[ProcessPoolExecutor]:
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in methods else None)
    with warnings.catch_warnings():
        # Python 3.12 counts numpy's idle threads and warns of locks that none of them holds.
        warnings.simplefilter("ignore", DeprecationWarning)
        with ProcessPoolExecutor(count, context, _share, (os.getpid(), shared)) as pool:
            yield pool


def _share(parent: int, shared: Any) -> None:
    end_with_parent(parent)
    global _shared  # noqa: PLW0603  (a worker has one task, and this is its memory)
    _shared = shared
    gc.freeze()  # inherited objects stay, so that collections need not visit them


def _call(function: Callable[[Any, Item], Answer], item: Item) -> Answer:
    return function(_shared, item)


def _cores() -> int:
    available = getattr(os, "sched_getaffinity", None)
    cores = len(available(0)) if available else os.cpu_count() or 1
    return min(cores, MOST_WORKERS)
