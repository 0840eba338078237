"""Membership of a round, where peers come and go.

Peers have numbers, in the order in which they came. Before round n each says that it is here; when
all are here that took part in the last round, or have said that they will come, or when the
deadline of one is over, that one proposes the list of peers that are here, and the store takes
the first proposal. So all have the same list; a peer that is not in it is late. If an exchange
fails, since a member died, the others meet again for another attempt at the same round. The first
attempt that succeeds at a member is the round's result, for all: a peer that failed in it, or made
another, is late, too.

A peer that is late and reaches no other one goes on alone, since the others may have ended. They
may live as well, and have another state then: so its rounds are a *branch*, with keys of their own,
which others do not see. Where the rounds that it left go on without it, it is late again.

    member/P        where peer P answers (`harp.lightcc.outer.newest`)
    coming/P        how often peer P has said that it takes the newest state: others wait for it, in
                    one round, so that the state stays the newest until P has it; empty: it could
                    not take it
    B n.a/here/P    peer P has come to attempt a of round n, and the group that it has, if any
    B n.a/members   the peers that take part in it, decided once, and the group that all have
    B n/result      the attempt that gives the round's result, decided once

Branch B is "" for all, "P@n/" after it for what peer P went on with alone after round n. The store
must stay up as long as any peer does: ``harp run`` holds one.
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
    """Members of an attempt."""

    numbers: tuple[int, ...]
    group: str
    """The name of the group that they have already; empty: they make one."""


class Meeting:
    """One peer at all rounds.

    Args:
        store: see above.
        address: where this peer answers, in any form that JSON has.
        deadline_s: how long it waits in a round for others.
        start_s: the same in round 0, with which training begins.

    """

    def __init__(self, store: DecidingStore, address: Any, deadline_s: float,
                 start_s: float) -> None:
        self._store, self._deadline_s, self._start_s = store, deadline_s, start_s
        self._addresses: list[Any] = []
        own = json.dumps(address).encode()
        self.number = 0
        """This peer's."""
        while self._store.settle(f"member/{self.number}", own) != own:
            self.number += 1
        self.branch = ""
        """Begins the keys of the rounds that this peer takes part in."""
        self._last: set[int] = set()
        self._announced = 0
        self._heard: dict[int, bytes] = {}
        self._coming: set[int] = set()

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

    def announce(self) -> None:
        """Say that this peer takes the newest state and comes, so that the others wait for it."""
        self._look_for_comers()
        self._coming.clear()  # the others wait for these
        self._announced += 1
        self._store.set(f"coming/{self.number}", b"%d" % self._announced)

    def join(self, last: Sequence[int], branch: str) -> None:
        """Expect those that took part in the last round of a branch."""
        self._last, self.branch = {self.number, *last}, branch

    def go_on_alone(self, number: int) -> None:
        """Begin a branch after a round, unless this peer has one; nobody waits for it elsewhere."""
        self._store.set(f"coming/{self.number}", b"")
        if not self._is_left_behind():
            self.join((), f"{self.branch}{self.number}@{number}/")

    def gather(self, number: int, attempt: int, group: str = "",
               look: Callable[[], None] = lambda: None) -> Members | None:
        """Wait for the others; give the members, or None where this peer is late.

        Args:
            number: of the round.
            attempt: at it.
            group: the name of the group that this peer has, if any.
            look: is called now and then; it may `forget` peers.

        """
        if self._is_left_behind():
            return None
        key = f"{self.branch}{number}.{attempt}"
        self._store.set(f"{key}/here/{self.number}", group.encode())
        limit_s = time.monotonic() + (self._deadline_s if number else self._start_s)
        here: set[int] = set()
        while not self._store.has(f"{key}/members"):
            if self.has_result(number):
                return None
            look()
            self._look_for_comers()
            here = self._look_who_is_here(key, here)
            if self._last | self._coming <= here or time.monotonic() >= limit_s:
                self._propose(key, sorted(here))
                break
            time.sleep(POLL_S)  # a store cannot wait for the first of several keys
        self._coming.clear()
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
        return self._store.settle(f"{self.branch}{number}/result",
                                  b"%d" % attempt) == b"%d" % attempt

    def has_result(self, number: int) -> bool:
        """Whether a round is over for somebody."""
        return self._store.has(f"{self.branch}{number}/result")

    def _is_left_behind(self) -> bool:
        """Whether the rounds that this peer's branch has left go on."""
        before = ""
        for part in self.branch.split("/")[:-1]:
            left_after = int(part.partition("@")[2])
            if self._store.has(f"{before}{left_after + 1}/result"):
                return True
            before += f"{part}/"
        return False

    def _look_who_is_here(self, key: str, known: set[int]) -> set[int]:
        return known | {number for number in range(len(self._known())) if number not in known
                        and self._store.has(f"{key}/here/{number}")}

    def _look_for_comers(self) -> None:
        for number in range(len(self._known())):
            key = f"coming/{number}"
            if number == self.number or number in self._last or not self._store.has(key):
                continue
            if (said := self._store.get(key)) != self._heard.get(number):
                self._heard[number] = said
                (self._coming.add if said else self._coming.discard)(number)

    def _known(self) -> Sequence[Any]:
        while self._store.has(f"member/{len(self._addresses)}"):
            self._addresses.append(json.loads(self._store.get(f"member/{len(self._addresses)}")))
        return self._addresses
