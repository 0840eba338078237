"""The ranks and process sets that ``init`` made in this process.

Each set of ranks has a group and a `Runtime` of its own, so sets work at the same time. Sets are
made by all ranks in the same order, which numbers them.
"""

from __future__ import annotations

import atexit
import contextlib
import operator
import os
from collections import Counter
from typing import TYPE_CHECKING

from harp.lightcc.group import Group
from harp.lightcc.horovod.autotune import Tuner
from harp.lightcc.horovod.horovod_errors import NotInitializedError
from harp.lightcc.horovod.horovod_settings import DYNAMIC, Settings
from harp.lightcc.horovod.runtime import Runtime
from harp.lightcc.horovod.timeline import Timeline
from harp.lightcc.peers import memory_place
from harp.lightcc.store import PrefixStore, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harp.lightcc.horovod.runtime import Errors
    from harp.lightcc.launch import Place
    from harp.lightcc.peers import Store


class ProcessSet:
    """Some of the ranks, which have collectives of their own.

    Args:
        ranks: their numbers among all.

    """

    process_set_id: int | None = None

    def __init__(self, ranks: Sequence[int] = ()) -> None:
        try:
            self.ranks = sorted(map(operator.index, ranks))
        except TypeError:
            raise TypeError(f"the ranks of a process set are {ranks!r}; allowed are whole "
                            "numbers, in a list") from None
        self.runtime: Runtime | None = None

    def included(self) -> bool:
        """Whether this rank is one of them."""
        return current().rank in self.ranks

    def size(self) -> int:
        """Return the number of its ranks."""
        self._check_added()
        return len(self.ranks)

    def rank(self) -> int:
        """Return this rank's number in the set. Raises ValueError if it is not in the set."""
        self._check_added()
        if not self.included():
            raise ValueError(f"rank {current().rank} is not in the process set {self.ranks}")
        return self.ranks.index(current().rank)

    def _check_added(self) -> None:
        if self.process_set_id is None:
            raise ValueError("the process set was not added; hvd.init(process_sets=...) and "
                             "hvd.add_process_set do so")

    def __repr__(self) -> str:
        """Describe the set."""
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class World:
    """All ranks.

    Args:
        place: the rank of this process.
        store: where the ranks find each other, for this world alone.
        settings: the HOROVOD_* variables.
        whole: becomes the set of all ranks.
        errors: the values that top-k has not sent yet, by tensor.

    """

    def __init__(self, place: Place, store: Store, settings: Settings, whole: ProcessSet,
                 errors: Errors) -> None:
        self.rank, self.size = place.rank, place.size
        self.settings, self.timeline = settings, Timeline()
        self._store, self._errors, self._sets = store, errors, 0
        self.sets: dict[int, ProcessSet] = {}
        whole.ranks = list(range(place.size))
        self.add(whole)
        try:
            hosts = _exchange_hosts(place, store)
            if place.rank == 0 and settings.timeline not in {"", DYNAMIC}:
                self._start_timeline()
        except BaseException:
            self.close()
            raise
        host = hosts[place.rank]
        self.local_rank = hosts[:place.rank].count(host)
        self.local_size = hosts.count(host)
        names = list(dict.fromkeys(hosts))
        # The ranks with this local rank: one of each host that has enough ranks.
        peers = [name for name in names if hosts.count(name) > self.local_rank]
        self.cross_rank, self.cross_size = peers.index(host), len(peers)
        self.is_homogeneous = len(set(Counter(hosts).values())) == 1

    def _start_timeline(self) -> None:
        path = self.settings.timeline
        try:
            self.timeline.start(path, mark_cycles=self.settings.mark_cycles)
        except OSError as error:
            raise ValueError(f"HOROVOD_TIMELINE {path} cannot be written: "
                             f"{error.strerror}") from None

    def add(self, added: ProcessSet) -> None:
        """Make a set's group. All ranks call it, those that are not in the set, too."""
        if not added.ranks or not set(added.ranks) <= set(range(self.size)):
            raise ValueError(f"a process set of ranks {added.ranks} is invalid; allowed are 0 "
                             f"to {self.size - 1}, each once and at least one")
        for known in self.sets.values():
            if known.ranks == added.ranks:
                raise ValueError(f"a process set with ranks {added.ranks} was added before")
        number, self._sets = self._sets, self._sets + 1
        if self.rank in added.ranks:
            group = Group(added.ranks.index(self.rank), len(added.ranks),
                          PrefixStore(set_prefix(number), self._store),
                          self.settings.start_timeout_s, members=added.ranks)
            try:
                added.runtime = self._make_runtime(group, number)
            except BaseException:
                group.close()
                raise
        added.process_set_id = number
        self.sets[number] = added

    def _make_runtime(self, group: Group, number: int) -> Runtime:
        tuner = (Tuner(self.settings, group.settings)
                 if self.settings.autotune and number == self.rank == 0 else None)
        timeline = self.timeline.of_set(number) if number else self.timeline
        return Runtime(group, self.settings, timeline, self._errors if number == 0 else {}, tuner)

    def remove(self, removed: ProcessSet) -> None:
        """End a set."""
        if removed.process_set_id in {None, 0}:
            raise ValueError("the set of all ranks cannot be removed, nor one that was not added")
        assert removed.process_set_id is not None
        del self.sets[removed.process_set_id]
        self._end_set(removed)

    def close(self) -> None:
        """Leave."""
        for ended in reversed(list(self.sets.values())):
            self._end_set(ended)
        self.sets.clear()
        self.timeline.stop()

    def _end_set(self, ended: ProcessSet) -> None:
        ended.process_set_id = None
        if ended.runtime:
            ended.runtime.close()
            ended.runtime = None


def store_prefix(meeting: int) -> str:
    """Begin the keys of the world that a meeting makes."""
    return f"world{meeting}/"


def set_prefix(number: int) -> str:
    """Begin the keys of a set's group among its world's."""
    return f"set{number}/"


def _exchange_hosts(place: Place, store: Store) -> list[str]:
    """Return each rank's host: ranks that share memory have the same."""
    if place.size == 1:
        return [""]
    if place.local_size == place.size:
        return [""] * place.size
    store.set(f"host/{place.rank}", memory_place().encode())
    return [bytes(store.get(f"host/{rank}")).decode() for rank in range(place.size)]


global_process_set = ProcessSet()
_world: World | None = None
_store: Store | None = None
_errors: Errors = {}


def current() -> World:
    """Return the world that ``init`` made."""
    if _world is None:
        raise NotInitializedError
    return _world


def is_initialized() -> bool:
    """Whether ``init`` was called, and ``shutdown`` not since."""
    return _world is not None


def meeting_store(place: Place, environment: Mapping[str, str] = os.environ) -> Store:
    """Return the store in which the ranks meet, opened in the first call."""
    global _store  # noqa: PLW0603  (Horovod's API has one world a process)
    if _store is None:
        _store = open_store(environment, place.rank, place.size,
                            Settings.from_env(environment).start_timeout_s)
    return _store


def restart(place: Place, process_sets: Sequence[ProcessSet] = (),
            environment: Mapping[str, str] = os.environ, meeting: int = 0) -> None:
    """Make a new world, as rank and size of ``place``, in the same store as before.

    Each ``meeting`` makes one world at most.
    """
    global _world  # noqa: PLW0603  (Horovod's API has one world a process)
    end()
    settings = Settings.from_env(environment).of_meeting(meeting)
    store = meeting_store(place, environment)
    world = World(place, PrefixStore(store_prefix(meeting), store), settings,
                  global_process_set, _errors)
    try:
        for added in process_sets:
            world.add(added)
    except BaseException:
        world.close()
        raise
    _world = world


def gradient_errors() -> Errors:
    """Return the values that top-k has not sent yet, by tensor; they may be changed."""
    return _errors


@atexit.register
def end() -> None:
    """Leave the other ranks."""
    global _world
    if _world is not None:
        ended, _world = _world, None
        with contextlib.suppress(Exception):
            ended.close()
