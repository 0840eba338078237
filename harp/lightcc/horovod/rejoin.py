"""The meeting of ranks that are left and ranks that are added.

``harp run --min-np`` knows the processes that live, and starts more where hosts are added. Each
process that wants a group, the first one too, writes to the store the number of the meeting and the
number with which it was started. When all live ranks of the last group have done so, ``harp run``
publishes the list of those that meet, in the order of their new ranks; if one of them ends before
it has made the group, ``harp run`` says so to the others, and they meet again. A process that is
late for a meeting takes part in the next one. The store also says that a process waits, or that a
host was removed; ranks read it at each commit.

Under other launchers all ranks must come again, with their old numbers, and rank 0 calls the
meetings: it writes to the store the number of each that it comes to, and the others follow. If each
rank counted for itself they would part: one leaves a group by ``shutdown``, and another one, which
still waits for a call, loses the same group and meets again by itself.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import TYPE_CHECKING

from harp.lightcc.failure import GroupError, name_ranks
from harp.lightcc.horovod import world
from harp.lightcc.horovod.horovod_errors import HorovodInternalError
from harp.lightcc.horovod.horovod_settings import Settings
from harp.lightcc.launch import Place, read_place
from harp.lightcc.peers import FAILED_KEY
from harp.lightcc.store import StoreClient
from harp.net.errors import HarpError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harp.lightcc.peers import Store

ELASTIC = "HARP_ELASTIC"
"""Set by ``harp run --min-np``: the first meeting to which a process comes, from 1 on."""
ATTEMPTS = 20

_meeting = 0
log = logging.getLogger("harp.horovod")


def here_key(meeting: int) -> str:
    """Return the prefix of the keys of processes that want a new group."""
    return f"elastic/{meeting}/here/"


def members_key(meeting: int) -> str:
    """Give the key of the rank that makes the new group."""
    return f"elastic/{meeting}/members"


def changed_key(meeting: int) -> str:
    """Give the key that asks all to come to a meeting."""
    return f"elastic/{meeting}/changed"


def called_key(meeting: int) -> str:
    """Give the key that rank 0 sets to call the others to a meeting of a plain job."""
    return f"plain/{meeting}/called"


def failed_key(meeting: int) -> str:
    """Give the key of the reason why those that meet make no group (`harp.lightcc.peers`)."""
    return f"{world.store_prefix(meeting)}{world.set_prefix(0)}{FAILED_KEY}"


def start(process_sets: Sequence[world.ProcessSet] = (),
          environment: Mapping[str, str] = os.environ) -> None:
    """Meet the other ranks, at first or after ``shutdown``; in a group it does nothing.

    A process that is added to an elastic job waits until the others meet.
    """
    global _meeting  # noqa: PLW0603  (counts what this process lived through)
    if world.is_initialized():
        return
    if ELASTIC in environment:
        _meeting = max(_meeting, int(environment[ELASTIC]) - 1)
    elif not _meeting:
        world.restart(_next_place(environment), process_sets, environment, _meeting)
        return
    meet_again(process_sets, environment)


def meet_again(process_sets: Sequence[world.ProcessSet] = (),
               environment: Mapping[str, str] = os.environ) -> None:
    """Make a group of the ranks that are there now. Raises HorovodInternalError if one is lost."""
    world.end()
    timeout_s = Settings.from_env(environment).start_timeout_s
    for _ in range(ATTEMPTS):
        place, began_s = _next_place(environment), time.monotonic()
        try:
            world.restart(place, process_sets, environment, _meeting)
        except (GroupError, HarpError, TimeoutError, ConnectionError) as error:
            why = str(error) or "the others did not come"
            if time.monotonic() - began_s >= timeout_s:  # who did not come now comes no more
                raise HorovodInternalError(f"{why} (HOROVOD_START_TIMEOUT)") from error
            log.warning("no group could be made: %s", why)
        else:
            return
    raise HorovodInternalError(f"no group could be made in {ATTEMPTS} attempts")


def hosts_have_changed(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the launcher asks for another meeting."""
    store = world.meeting_store(read_place(environment), environment)
    return isinstance(store, StoreClient) and store.has(changed_key(_meeting + 1))


def _next_place(environment: Mapping[str, str]) -> Place:
    """Come to the next meeting; return this process's place among those that meet."""
    global _meeting  # noqa: PLW0603  (counts what this process lived through)
    _meeting += 1
    place = read_place(environment)
    if ELASTIC in environment:
        return _assigned_place(environment, place)
    store = world.meeting_store(place, environment)
    if place.rank == 0:
        store.set(called_key(_meeting), b"")
        return place
    if _meeting > 1:  # to the first one all come uncalled
        try:
            store.get(called_key(_meeting))
        except TimeoutError:
            raise HorovodInternalError(_describe_late([0], environment)) from None
    while store.has(called_key(_meeting + 1)):
        _meeting += 1  # rank 0 has gone on to the next meeting
    return place


def _assigned_place(environment: Mapping[str, str], place: Place) -> Place:
    global _meeting  # noqa: PLW0603  (counts what this process lived through)
    store = world.meeting_store(place, environment)
    while True:
        store.set(f"{here_key(_meeting)}{place.rank}", b"")
        try:
            members = json.loads(bytes(store.get(members_key(_meeting))))
        except TimeoutError:
            if 1 < _meeting == int(environment[ELASTIC]):
                continue  # one that is added waits for the others' next commit, however late
            raise HorovodInternalError(_describe_missing(environment, place, store)) from None
        if place.rank in members:
            return Place(members.index(place.rank), len(members))
        _meeting += 1


def _describe_missing(environment: Mapping[str, str], place: Place, store: Store) -> str:
    before = members_key(_meeting - 1)
    members = json.loads(bytes(store.get(before))) if store.has(before) else range(place.size)
    return _describe_late([rank for rank in members
                           if not store.has(f"{here_key(_meeting)}{rank}")], environment)


def _describe_late(ranks: Sequence[int], environment: Mapping[str, str]) -> str:
    timeout_s = Settings.from_env(environment).start_timeout_s
    return (f"{name_ranks(ranks)} did not come to a new group within {timeout_s:g} s "
            "(HOROVOD_START_TIMEOUT)")
