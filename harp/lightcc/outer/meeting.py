"""Who takes part in a round, where peers come and go.

Peers have numbers, in the order in which they came. Before round n each says that it is here; when
all are here that took part in the last round, or have said that they will come, or when the
deadline of one is over, that one proposes the list of who is here, and the store takes the first
proposal. So all have the same list; who is not in it is late. Members whose exchange fails, since
one of them died, meet again for another attempt at the same round. The first attempt that succeeds
at a member is the round's result, for all: who failed in it, or made another, is late, too.

    member/P        where peer P answers (`harp.lightcc.outer.newest`)
    n.a/here/P      peer P has come to attempt a of round n, and the group that it has, if any
    n.a/members     who takes part in it, decided once, and the group that all of them have
    n.a/coming/P    peer P has the state of round n - 1 and will come to round n (a is 0)
    n/result        the attempt whose result counts, decided once

The store must outlive all peers: ``harp run`` holds one.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

POLL_S = 0.05
"""Between two looks into the store: short beside a round, long beside a request."""


class DecidingStore(Protocol):
    """The store that peers share (`harp.lightcc.store`)."""

    def set(self, key: str, value: bytes) -> object:
        """Set a key."""

    def get(self, key: str) -> bytes:
        """Give the value of a key that is set, or wait for it."""

    def has(self, key: str) -> bool:
        """Whether a key is set."""

    def settle(self, key: str, value: bytes) -> bytes:
        """Set a key unless it is set; give what it is then."""


class Members(NamedTuple):
    """Who takes part in an attempt."""

    numbers: tuple[int, ...]
    group: str
    """The name of the group that they have already; empty: they make one."""


class Meeting:
    """One peer at all rounds.

    Args:
        store: see above.
        address: where this peer answers, in any form that JSON has.
        deadline_s: how long it waits in a round for others.

    """

    def __init__(self, store: DecidingStore, address: Any, deadline_s: float) -> None:
        self._store, self._deadline_s = store, deadline_s
        self._addresses: list[Any] = []
        own = json.dumps(address).encode()
        self.number = 0
        """This peer's."""
        while self._store.settle(f"member/{self.number}", own) != own:
            self.number += 1
        self._last: set[int] = set()

    def others(self) -> dict[int, Any]:
        """Give the addresses of all other peers that ever came, by their numbers."""
        return {number: address for number, address in enumerate(self._known())
                if number != self.number}

    def found(self, peers: int) -> bool:
        """Expect the first ``peers`` in round 0; False where this one comes after it."""
        if self.number >= peers:
            self._store.get("0/result")  # waits for it
        self._last = set(range(peers))
        return not self._store.has("0/result")

    def announce(self, number: int, last: Sequence[int]) -> None:
        """Say that this peer will come to a round after that of ``last``, so that all wait."""
        self._last = {self.number, *last}
        self._store.set(f"{number}.0/coming/{self.number}", b"")

    def gather(self, number: int, attempt: int, group: str = "",
               look: Callable[[], None] = lambda: None) -> Members | None:
        """Wait for the others; give the members, or None where this peer is late.

        Args:
            number: of the round.
            attempt: at it.
            group: the name of the group that this peer has, if any.
            look: is called now and then; it may `forget` peers.

        """
        key = f"{number}.{attempt}"
        self._store.set(f"{key}/here/{self.number}", group.encode())
        limit_s = time.monotonic() + self._deadline_s
        here: set[int] = set()
        while not self._store.has(f"{key}/members"):
            if self._store.has(f"{number}/result"):
                return None
            look()
            coming = self._marked(key, "coming", self._last)
            here = self._marked(key, "here", here)
            if self._last | coming <= here or time.monotonic() >= limit_s:
                self._propose(key, sorted(here))
                break
            time.sleep(POLL_S)
        numbers, known = json.loads(self._store.get(f"{key}/members"))
        if self.number not in numbers:
            return None
        self._last = set(numbers)
        return Members(tuple(numbers), known)

    def _propose(self, key: str, here: list[int]) -> None:
        groups = {self._store.get(f"{key}/here/{one}").decode() for one in here}
        group = groups.pop() if len(groups) == 1 else ""
        self._store.settle(f"{key}/members", json.dumps([here, group]).encode())

    def forget(self, peer: int) -> None:
        """Do not wait for a peer that died, until it says that it will come."""
        self._last.discard(peer)

    def settle(self, number: int, attempt: int) -> bool:
        """Report that an attempt has succeeded here; False where another one's result counts."""
        return self._store.settle(f"{number}/result", b"%d" % attempt) == b"%d" % attempt

    def has_result(self, number: int) -> bool:
        """Whether a round is over for somebody."""
        return self._store.has(f"{number}/result")

    def _marked(self, key: str, mark: str, known: set[int]) -> set[int]:
        """Add to ``known`` the peers that have set a mark."""
        return known | {number for number in range(len(self._known())) if number not in known
                        and self._store.has(f"{key}/{mark}/{number}")}

    def _known(self) -> Sequence[Any]:
        while self._store.has(f"member/{len(self._addresses)}"):
            self._addresses.append(json.loads(self._store.get(f"member/{len(self._addresses)}")))
        return self._addresses
