"""Handles of calls under way, for `synchronize` and `poll`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from harp.lightcc.horovod.torch.arguments import checked
from harp.lightcc.horovod.world import current

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from harp.lightcc.horovod.runtime import Entry, Runtime
    from harp.lightcc.horovod.world import ProcessSet

_handles: dict[int, tuple[Future[Any], Runtime]] = {}
_groups: dict[int, list[int]] = {}
"""Handles of a grouped call by the one that its caller has."""
_numbers = itertools.count()
_unnamed: dict[tuple[str, int | None], itertools.count[int]] = {}


@checked
def synchronize(handle: int) -> Any:
    """Wait for a call, and give its result, of a grouped one a tuple. Raises what it failed by."""
    if handle in _groups:
        return _synchronize_all(_groups.pop(handle))
    if handle not in _handles:
        raise ValueError(f"handle {handle} is not known; each is synchronized once")
    future, runtime = _handles.pop(handle)
    if not future.done():
        runtime.hurry()
    return future.result()


def _synchronize_all(handles: Sequence[int]) -> tuple[Any, ...]:
    """Wait for all, even if one fails: none of them is under way when its tensors are free."""
    futures = [_handles.pop(handle) for handle in handles]
    for future, runtime in futures:
        if not future.done():
            runtime.hurry()
            future.exception()
    return tuple([future.result() for future, _ in futures])


@checked
def poll(handle: int) -> bool:
    """Whether a call is over, so that `synchronize` will not wait."""
    if handle in _groups:
        return all(map(poll, _groups[handle]))
    if handle not in _handles:
        raise ValueError(f"handle {handle} is not known; it may have been synchronized")
    return _handles[handle][0].done()


def join_handles(handles: list[int]) -> int:
    """Give one handle for all of them."""
    handle = next(_numbers)
    _groups[handle] = handles
    return handle


def begin(runtime: Runtime, entries: Sequence[Entry]) -> list[int]:
    """Ask for tensors, all in one message; each gets a handle."""
    runtime.enqueue(entries)
    begun = []
    for entry in entries:
        handle = next(_numbers)
        _handles[handle] = entry.future, runtime
        begun.append(handle)
    return begun


def runtime_of(process_set: ProcessSet) -> Runtime:
    """Return the runtime of a set. Raises ValueError if this rank is not in the set."""
    current()
    process_set.rank()
    assert process_set.runtime
    return process_set.runtime


def named(kind: str, name: str | None, process_set: ProcessSet) -> str:
    """Give a call's name among all ranks; those that its caller did not name are counted."""
    if name is not None:
        return f"{kind}.{name}"
    key = kind, process_set.process_set_id
    return f"{kind}.noname.{next(_unnamed.setdefault(key, itertools.count()))}"


def forget_unnamed(process_set: ProcessSet | None = None) -> None:
    """Begin to count calls without a name anew, of a set or of all; all its ranks must do so."""
    for key in list(_unnamed):
        if process_set is None or key[1] == process_set.process_set_id:
            del _unnamed[key]
