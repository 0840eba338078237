"""Peers that come and go: a round goes on without those that miss it, and they catch up later.

    peers = Peers(2, deadline_s=60)               # in each process, which is an island of one rank
    outer = DiLoCo(model, optimizer, every=30, peers=peers)

A peer that does not come to a round within the deadline, is killed, or loses its network, is left
out, and the others' means go on without it, by weights: what a peer sends counts by the inner steps
that it has made since it last had the common state, times its ``weight``. A peer that is late or
new takes the newest state from the nearest peer; its steps since the last round are lost, and so is
what it had not sent. The others keep theirs, and send it in the rounds to come.

`harp.lightcc.outer.meeting` says which peers take part, `harp.lightcc.outer.newest` how a state is
sent. Members of a round sum over a group of LightCC of their own, which is made again when they
change. The store is that of ``harp run --min-np`` by default.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import socket
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from harp.lightcc.failure import GroupError
from harp.lightcc.few_bits import FewBits
from harp.lightcc.group import Group
from harp.lightcc.outer.meeting import Meeting
from harp.lightcc.outer.newest import StateServer, take_newest
from harp.lightcc.store import VARIABLE, PrefixStore, StoreClient
from harp.net.errors import HarpError

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from harp.lightcc.outer.meeting import DecidingStore, Members

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

    T = TypeVar("T")

log = logging.getLogger("harp.lightcc")

GONE = re.compile(r"\brank (\d+) is gone\b")
"""Message at all other ranks when a rank is lost (`harp.lightcc.peers`)."""
DISCARD = 9
"""The UDP port of RFC 863; nothing is sent to it."""


class Peers:
    """One peer, among the others.

    Args:
        count: peers with which training begins; it waits for them for ``timeout_s``.
        deadline_s: how long a round waits for a peer that does not come.
        weight: of this peer's steps beside those of the others; such as samples a step.
        timeout_s: how long an exchange may take. A peer that is silent for this long, or 30 s if
            that is less, counts as dead.
        store: all peers share it, and it stays up longer than they do.

    """

    def __init__(self, count: int, *, deadline_s: float = 60.0, weight: float = 1.0,
                 timeout_s: float = 600.0, store: DecidingStore | None = None) -> None:
        for name, found, least in (("count", count, 1), ("deadline_s", deadline_s, 0),
                                   ("weight", weight, 0), ("timeout_s", timeout_s, 0)):
            if not found >= least:
                raise ValueError(f"{name} is {found}; allowed is {least} or more")
        self._count, self._deadline_s, self._timeout_s = count, deadline_s, timeout_s
        self.weight = weight
        self._store = store or _store_of_launcher(timeout_s)
        self.number = -1
        """The last round in which this peer has the common state; 0: as training began."""
        self.members: tuple[int, ...] = ()
        """The peers that took part in it, by their numbers."""
        self._group: Group | None = None
        self._group_name = ""
        self._grouped: tuple[int, ...] = ()
        self._reasons: dict[int, str] = {}
        """Why peers are gone, by their numbers: what was heard since the last round."""
        self._parts: Sequence[Bytes] = ()

    # ---- The state that peers have in common

    def check_alike(self, described: Mapping[str, object]) -> None:
        """Raise ValueError where a method's settings are not those of the peer that came first."""
        first = json.loads(self._store.settle("settings", json.dumps(described).encode()))
        differ = [f"{name} is {first.get(name)!r} at the first one and {here!r} here"
                  for name, here in described.items() if first.get(name) != here]
        if differ:
            raise ValueError(f"peers do not agree: {'; '.join(differ)}")

    def start(self, parts: Sequence[Bytes], steps: Callable[[], int]) -> int | None:
        """Begin with the others, or take their state; gives the steps that they have made then.

        Args:
            parts: the memory of the state, all of it, in an order that is the same at all peers.
            steps: gives the inner steps made by now.

        """
        self._parts = parts
        token = self._store.settle("token", secrets.token_hex(16).encode()).decode()
        self._server = StateServer(_own_host(), token, steps)
        self._meeting = Meeting(self._store, self._server.address, self._deadline_s,
                                self._timeout_s)
        self.me = self._meeting.number
        """This peer's number, in the order in which all came."""
        if not self._meeting.found(self._count):
            return self.catch_up()

        def take_first(group: Group) -> bool:
            for part in parts:
                group.broadcast(part, 0).result(self._timeout_s)
            return True
        if self._attempt(0, take_first) is None:
            return self.catch_up()
        self.offer(0)
        return 0

    def catch_up(self) -> int | None:
        """Take the newest state; None where no other peer has one, and this one goes on alone."""
        self._meeting.announce()
        found = take_newest(self._meeting.others(), self._server.token, self.number,
                            self._timeout_s, self._meeting.branch)
        if found is None:
            while self._meeting.has_result(self.number + 1):
                self.number += 1
            log.warning("peer %d reaches no other one, and goes on alone after round %d", self.me,
                        self.number)
            self.members = (self.me,)
            self._meeting.go_on_alone(self.number)
            self.offer(self.number)
            return None
        head, state = found
        with self._server.changing(head.number, head.members, self._parts, head.branch):
            at = 0
            for part in self._parts:
                part[:] = np.frombuffer(state, np.uint8, len(part), at)
                at += len(part)
        self.number, self.members = head.number, head.members
        self._meeting.join(head.members, head.branch)
        log.info("peer %d took the state after round %d", self.me, head.number)
        return head.steps

    def offer(self, number: int) -> None:
        """Give the state as it is now to peers that ask, as that after a round."""
        self.number = number
        with self.changing():
            pass

    def changing(self) -> contextlib.AbstractContextManager[None]:
        """Let the state change, to that after the round that was exchanged last."""
        return self._server.changing(self.number, self.members, self._parts, self._meeting.branch)

    # ---- Rounds

    def mean(self, vector: Floats, share: float) -> Floats | None:
        """Give the mean of the members' vectors by weight, bit-equal; None where this one is late.

        Args:
            vector: of float32.
            share: of a round's steps that this peer has made.

        """
        weight = np.float32(self.weight * share)
        own = np.append(vector * weight, weight)

        def add(group: Group) -> Floats:
            total = own.copy()
            group.allreduce(total.view(np.uint8), "float32").result(self._timeout_s)
            return total
        total = self._attempt(self.number + 1, add)
        if total is None:
            return None
        return total[:-1] / total[-1] if total[-1] else total[:-1]

    def mean_in_few_bits(self, vector: Floats, error: Floats, bits: int,
                         share: float) -> Floats | None:
        """Do as `mean`, in ``bits`` bits a value; weights are sent whole.

        ``error`` has what was lost of this peer's weighted vectors, and of the sums that it made.
        It changes with the attempt that counts, and with no other: what an attempt took that a
        peer's death ended is sent again.
        """
        weight = np.float32(self.weight * share)

        def add(group: Group) -> tuple[Floats, Floats, np.float32]:
            total, left = vector * weight, error.copy()
            weights = np.zeros(group.ranks, np.float32)
            weights[group.rank] = weight
            group.allgather(weights.view(np.uint8)).result(self._timeout_s)
            FewBits(group, len(total), bits, call="mean of peers").allreduce(
                total, left).result(self._timeout_s)
            return total, left, weights.sum()
        done = self._attempt(self.number + 1, add)
        if done is None:
            return None
        total, error[:], of_all = done
        return total / of_all if of_all else total

    def messages(self, message: Bytes, share: float) -> tuple[list[Bytes], Floats] | None:
        """Give the members' messages, of one size, and their weights, which add up to 1."""
        own = np.concatenate([message, np.array([self.weight * share], np.float32).view(np.uint8)])

        def gather(group: Group) -> Bytes:
            came = np.zeros((group.ranks, len(own)), np.uint8)
            came[group.rank] = own
            group.allgather(came.reshape(-1)).result(self._timeout_s)
            return came
        came = self._attempt(self.number + 1, gather)
        if came is None:
            return None
        weights = np.ascontiguousarray(came[:, -4:]).view(np.float32).reshape(-1)
        weights /= weights.sum() or np.float32(1)
        return list(came[:, :-4]), weights

    def _attempt(self, number: int, work: Callable[[Group], T]) -> T | None:
        """Do the work of a round with the peers that come, again without those that die in it."""
        attempt = 0
        while (members := self._meeting.gather(number, attempt, self._group_name,
                                               self._look_for_dead)) is not None:
            try:
                done = work(self._group_of(members, f"{number}.{attempt}"))
            except (GroupError, HarpError, TimeoutError, ConnectionError) as error:
                log.warning("round %d, attempt %d: %s", number, attempt, error)
                self._forget_dead(str(error))
                self.close_group()
                attempt += 1
                continue
            if self._meeting.settle(number, attempt):
                self._log_changes(number, members.numbers)
                self.number, self.members = number, members.numbers
                return done
            break
        self.close_group()
        return None

    def _log_changes(self, number: int, members: Sequence[int]) -> None:
        """Log the peers that left since the last round, with reasons, and those that came."""
        for peer in sorted({*self.members} - {*members}):
            log.warning("round %d goes on without peer %d: %s", number, peer,
                        self._reasons.get(peer, "it did not come in time"))
        for peer in sorted({*members} - {*self.members, self.me}):
            log.info("peer %d comes in round %d", peer, number)
        self._reasons.clear()

    def _look_for_dead(self) -> None:
        if self._group is not None and self._group.failure is not None:
            self._forget_dead(self._group.failure)

    def _forget_dead(self, sentence: str) -> None:
        if gone := GONE.search(sentence):
            peer = self._grouped[int(gone[1])]
            self._reasons[peer] = f"it is gone{sentence[gone.end():]}"
            self._meeting.forget(peer)

    def _group_of(self, members: Members, name: str) -> Group:
        if self._group is None or not members.group or self._group.ranks != len(members.numbers):
            self.close_group()
            self._group_name, self._grouped = name, members.numbers
            self._group = Group(members.numbers.index(self.me), len(members.numbers),
                                PrefixStore(f"{self._meeting.branch}{name}/group/", self._store),
                                self._timeout_s)
        return self._group

    def close_group(self) -> None:
        """Leave the group of the last round."""
        if self._group is not None:
            self._group.close()
        self._group, self._group_name = None, ""

    def close(self) -> None:
        """Leave for good; the others' next round waits for one deadline."""
        self.close_group()
        self._server.shutdown()
        self._server.server_close()


def _store_of_launcher(timeout_s: float) -> DecidingStore:
    named = os.environ.get(VARIABLE, "")
    if not named or named.startswith("file:"):
        raise ValueError("peers that come and go need a store that stays up longer than they do: "
                         "start them by `harp run --min-np 1`, or give store=")
    return StoreClient(named, timeout_s)


def _own_host() -> str:
    """Give this host's address towards the others, which is that towards MASTER_ADDR."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    family, kind, protocol, _, where = socket.getaddrinfo(master, DISCARD,
                                                          type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as asking:
        asking.connect(where)  # sends nothing; the kernel chooses the route
        return str(asking.getsockname()[0])
