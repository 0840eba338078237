"""The failure of a group: one sentence, the same at all ranks, that says why.

Every part of a group that can see it fail is given the group's `Failure` and reports to it: the
queue of calls, messages between two ranks, and the group itself. Nothing else fails a group.

Several ranks may find a failure at once, and not the same one. The lowest rank that is left
decides: the first report that it hears is the sentence. The other ranks send it their reports and
wait for the sentence while the rank is there, and no longer than a silent rank counts as alive.
Each rank passes the sentence on once before it leaves, so it arrives although a rank is killed
while it sends it.

A report has one of four kinds. `FAILED` is a reason. `SYMPTOM` follows from a failure that another
rank sees better, such as data of a wrong size where ranks do not agree: it decides only if no
reason comes. `LATE` says that a call takes too long; all ranks are then asked how many calls they
have begun, and the sentence names the ranks that are furthest behind. `DIFFERS` says that two ranks
call different things, or may do so, since data of a wrong size came; all are asked what they call,
and the sentence names the ranks of each call.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

FAILED, SYMPTOM, LATE, DIFFERS = b"f", b"s", b"l", b"x"
DECIDED, ASK_CALLS_BEGUN, CALLS_BEGUN, ASK_CALL, CALL = b"d", b"h", b"n", b"a", b"c"
REMEMBERED = 32
"""Calls: more than are under way at once."""
LEAVE_S = 1.0
"""A rank that leaves tries for this long to reach the others."""
BEGIN_S, LOOK_S = 0.5, 0.01
"""A rank that is asked what it calls may be this late to begin the call; it looks so often."""


class GroupError(RuntimeError):
    """The group has failed; the sentence is the same at every rank that could be reached."""


def name_ranks(ranks: Sequence[int]) -> str:
    """Give ranks in words.

    >>> name_ranks([0]), name_ranks([0, 2, 3])
    ('rank 0', 'ranks 0, 2 and 3')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


class Messenger(Protocol):
    """The transport of reports: `harp.lightcc.p2p.PointToPoint`."""

    async def send_news(self, peer: int, kind: bytes, news: str) -> None:
        """Send news; raises GroupError where the peer is gone."""

    async def read_all_of(self, peer: int) -> None:
        """Wait until the peer is gone and all its messages have been read."""

    def end(self, why: str) -> None:
        """Fail the receives that wait."""


class Cancellable(Protocol):
    """Work that the failure ends: `harp.lightcc.mover.Mover`."""

    def cancel(self) -> None:
        """End what is under way."""


class Failure:
    """One rank's part in the decision.

    Methods run in the thread of the group's event loop, except where they say "any thread".

    Args:
        rank: the number of this rank.
        ranks: the number of ranks.
        timeout_s: the group's, for the sentence.
        patience_s: a rank that is there may be silent for this long.
        loop: the group's event loop.

    """

    def __init__(self, rank: int, ranks: int, timeout_s: float, patience_s: float,
                 loop: asyncio.AbstractEventLoop) -> None:
        self._rank, self._others = rank, [other for other in range(ranks) if other != rank]
        self._timeout_s, self._patience_s, self._loop = timeout_s, patience_s, loop
        self.sentence: str | None = None
        """Why the group has ended; None while it works. Any thread may read it."""
        self.known = asyncio.Event()
        self.calls_begun = 0
        """The calls that this rank has begun: counted by the queue, sent to ranks that ask."""
        self.last_begun: deque[tuple[int, str]] = deque(maxlen=REMEMBERED)
        """The last of these calls: their numbers and words."""
        self._messenger: Messenger | None = None
        self._mover: Cancellable | None = None
        self._listeners: list[Callable[[str | None], None]] = []
        self._reported: set[bytes] = set()
        self._begun_by: dict[int, int] = {}
        self._all_answered = asyncio.Event()
        self._calls_of: dict[int, str] = {}
        self._all_said = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def attach(self, messenger: Messenger, mover: Cancellable | None = None) -> None:
        """Set what carries reports, and what the failure ends, when they exist."""
        self._messenger, self._mover = messenger, mover

    # ---- From other threads ----

    def fail(self, why: str, kind: bytes = FAILED) -> str:
        """Fail the group and wait for the sentence. Any thread but the loop's."""
        return asyncio.run_coroutine_threadsafe(self.decide(why, kind), self._loop).result()

    def report_soon(self, why: str, kind: bytes = FAILED) -> None:
        """Report without waiting. Any thread; raises RuntimeError after the loop has ended."""
        self._loop.call_soon_threadsafe(self.report, why, kind)

    # ---- In the loop ----

    def report(self, why: str, kind: bytes = FAILED) -> None:
        """Report a failure.

        For LATE, ``why`` is the call, with its number first; for DIFFERS it is JSON: the number of
        the call, what the rank that reports calls, what each of two ranks calls, if both are known,
        and, if they may call the same, the sentence for that.
        """
        if self.sentence is None and not self._reported & {FAILED, kind}:
            self._reported.add(kind)
            self._start_task(self._ask_lower_ranks(why, kind))

    async def decide(self, why: str, kind: bytes = FAILED) -> str:
        """Report a failure and wait for the sentence."""
        self.report(why, kind)
        await self.known.wait()
        assert self.sentence is not None
        return self.sentence

    def take_news(self, rank: int, kind: bytes, text: str) -> None:
        """Take the news of another rank."""
        if kind == DECIDED:
            self._settle_and_send(text)
        elif kind == ASK_CALLS_BEGUN:
            self._start_task(self._send_news(rank, CALLS_BEGUN, str(self.calls_begun)))
        elif kind == CALLS_BEGUN:
            self._begun_by[rank] = int(text)
            if len(self._begun_by) == len(self._others):
                self._all_answered.set()
        elif kind == ASK_CALL:
            self._start_task(self._send_call(rank, int(text)))
        elif kind == CALL:
            self._calls_of[rank] = text
            if len(self._calls_of) == len(self._others):
                self._all_said.set()
        else:
            self.report(text, kind)

    def begin_call(self, what: str) -> int:
        """Count a call; returns its number. The thread that makes calls."""
        number = self.calls_begun + 1
        self.last_begun.append((number, what))
        self.calls_begun = number
        return number

    async def _send_call(self, rank: int, number: int) -> None:
        await self._send_news(rank, CALL, await self._wait_for_call(number))

    async def _wait_for_call(self, number: int) -> str:
        """Give what this rank calls in its call of a number; empty if it does not begin it soon.

        It looks again and again, so that the thread that makes calls has nobody to wake.
        """
        for _ in range(round(BEGIN_S / LOOK_S)):
            if self.calls_begun >= number:
                break
            await asyncio.sleep(LOOK_S)
        return dict(self.last_begun.copy()).get(number, "")

    def settle(self, sentence: str, *, is_failure: bool = True) -> None:
        """End this rank's work by a sentence; listeners get None if it is no failure."""
        if self.sentence is not None:
            return
        self.sentence = sentence
        self.known.set()
        if self._mover:
            self._mover.cancel()
        if self._messenger:
            self._messenger.end(sentence)
        for listener in self._listeners:
            self._loop.call_soon(listener, sentence if is_failure else None)

    def add_listener(self, listener: Callable[[str | None], None]) -> None:
        """Call ``listener`` with the sentence, or with None when the group is closed instead.

        At once if the group has failed.
        """
        if self.sentence is None:
            self._listeners.append(listener)
        else:
            listener(self.sentence)

    async def flush(self) -> None:
        """Wait until other ranks have the news for them, for a while."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LEAVE_S)

    async def close(self) -> None:
        """Flush, and then send nothing any more."""
        await self.flush()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- Finding the rank that decides ----

    async def _ask_lower_ranks(self, why: str, kind: bytes) -> None:
        for rank in range(self._rank):
            self._start_task(self._send_news(rank, kind, why))
            await self._wait_for_sentence_of(rank)
            if self.sentence is not None:
                return
        await self._decide_alone(why, kind)

    async def _wait_for_sentence_of(self, rank: int) -> None:
        """Wait for the sentence while a rank may still send it."""
        assert self._messenger
        waits = [asyncio.ensure_future(wait)
                 for wait in (self.known.wait(), self._messenger.read_all_of(rank))]
        await asyncio.wait(waits, timeout=self._patience_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    # ---- Deciding ----

    async def _decide_alone(self, why: str, kind: bytes) -> None:
        if kind == SYMPTOM:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.known.wait(), self._patience_s)
        elif kind == LATE:
            why = await self._name_missing_ranks(why)
        elif kind == DIFFERS:
            why = await self._name_odd_ranks(*json.loads(why))
        self._settle_and_send(why)

    async def _name_missing_ranks(self, call: str) -> str:
        number, what = call.split(" ", 1)
        for rank in self._others:
            self._start_task(self._send_news(rank, ASK_CALLS_BEGUN, ""))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_answered.wait(), LEAVE_S)
        answers = {self._rank: self.calls_begun, **self._begun_by}
        begun = {rank: answers.get(rank, 0) for rank in sorted([self._rank, *self._others])}
        last = min(begun.values())  # others that are behind wait for these in an earlier call
        missing = [rank for rank in begun if begun[rank] == last < int(number)]
        who = "rank " if len(missing) == 1 else "ranks "
        return (f"call {number}, {what}: not over after {self._timeout_s:g} s, "
                + (f"{who}{', '.join(map(str, missing))} did not come" if missing
                   else "though all ranks came"))

    async def _name_odd_ranks(self, number: int, what: str, both: dict[str, str],
                              if_same: str = "") -> str:
        for rank in self._others:
            self._start_task(self._send_news(rank, ASK_CALL, str(number)))
        own = await self._wait_for_call(number)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_said.wait(), LEAVE_S)
        said = {**self._calls_of, self._rank: own,
                **{int(rank): call for rank, call in both.items()}}
        calls: dict[str, list[int]] = {}
        for rank in sorted(said):
            if said[rank]:
                calls.setdefault(said[rank], []).append(rank)
        if if_same and len(calls) == 1:
            return if_same
        return f"call {number}, {what}: ranks do not agree: " + ", ".join(
            f"{name_ranks(ranks)} call{'s' * (len(ranks) == 1)} {call}"
            for call, ranks in calls.items())

    def _settle_and_send(self, sentence: str) -> None:
        if self.sentence is None:
            self.settle(sentence)
            for rank in self._others:
                self._start_task(self._send_news(rank, DECIDED, sentence))

    async def _send_news(self, rank: int, kind: bytes, text: str) -> None:
        assert self._messenger
        with contextlib.suppress(GroupError):  # the peer is gone
            await self._messenger.send_news(rank, kind, text)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
