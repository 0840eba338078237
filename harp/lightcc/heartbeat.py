"""Heartbeats of ranks that make a group: one that dies before it has connections is found.

A rank that has come changes a key of the store again and again, until it has all its connections,
whose ends say from then on that it is gone. Each rank watches the next one, around a ring of all,
that has come and is not ready: so one of the living watches each rank that has died, and all ranks
together ask for as many keys as there are ranks. A rank that has not come has no key, and is waited
for. Silence is counted in turns of the one that watches, so a job that is stopped and continued as
a whole finds nobody dead.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harp.lightcc.peers import Store

SILENT_TURNS = 10
"""Turns of another rank after which one that has not changed its key is dead."""
READY = b"ready"


class Heartbeat:
    """The heartbeat of one rank, and its watch over another one.

    Args:
        rank: the number of this rank.
        ranks: the number of ranks.
        store: where the ranks find each other.

    """

    def __init__(self, rank: int, ranks: int, store: Store) -> None:
        self._rank, self._ranks, self._store = rank, ranks, store
        self._beats = 0
        self._ready: set[int] = set()
        self._watched = rank
        self._last = b""
        """The value of the key of the rank that is watched."""
        self._silent = 0
        """Turns since that has changed."""

    def beat(self) -> None:
        """Say that this rank is there. Raises the store's errors, as `take_turn` does."""
        self._beats += 1
        self._store.set(self._key(self._rank), b"%d" % self._beats)

    def be_ready(self) -> None:
        """Say that this rank has all its connections, and beats no more."""
        with contextlib.suppress(Exception):  # the store may have gone with a rank that was ready
            self._store.set(self._key(self._rank), READY)

    def take_turn(self) -> int | None:
        """Beat, and look after the rank that is watched; give its number if it is dead."""
        self.beat()
        watched, value = self._find_next()
        if (watched, value) != (self._watched, self._last):
            self._watched, self._last, self._silent = watched, value, 0
        elif watched != self._rank:
            self._silent += 1
        return watched if self._silent >= SILENT_TURNS else None

    def _find_next(self) -> tuple[int, bytes]:
        """Give the next rank that has come and is not ready, and its key's value; else this one."""
        for step in range(1, self._ranks):
            rank = (self._rank + step) % self._ranks
            if rank not in self._ready and self._store.has(self._key(rank)):
                if (value := bytes(self._store.get(self._key(rank)))) != READY:
                    return rank, value
                self._ready.add(rank)
        return self._rank, b""

    @staticmethod
    def _key(rank: int) -> str:
        return f"beat/{rank}"
