"""How the ranks of a group come to one sentence about why it has failed.

Several ranks may find a failure at once, and not the same one. So the lowest rank that is left
decides, by the first failure that it hears of. The others tell it what they found and wait for its
word: as long as it is there, and so long as a silent rank counts as alive. Whoever hears the
sentence passes it on once before it leaves, so that it arrives although a rank is killed while it
tells the others.

What a rank finds has one of three kinds. `FAILED` is a reason. `SYMPTOM` is something that follows
from a failure that another rank sees better, as data of a wrong size where ranks do not agree: it
is decided by only if no reason comes. `LATE` says that a call takes too long; all ranks are then
asked how many calls they have begun, which tells who did not come.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from harp.lightcc.peers import GroupError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

FAILED, SYMPTOM, LATE = b"f", b"s", b"l"
DECIDED, HOW_FAR, SO_FAR = b"d", b"h", b"n"
TELL_S = 1.0
"""For so long a rank that leaves tries to reach others."""


class Messenger(Protocol):
    """What carries the news: `harp.lightcc.p2p.Letters`."""

    async def tell(self, peer: int, kind: bytes, news: str) -> None:
        """Send news; raises GroupError where the peer is gone."""

    async def heard_all_of(self, peer: int) -> None:
        """Wait until the peer is gone and all that it said has been heard."""


class Verdict:
    """One rank's part in it.

    Args:
        rank: its number.
        ranks: how many there are.
        timeout_s: the group's, for the sentence.
        patience_s: so long a rank that is there may be silent.
        end: is called once, with the sentence.
        calls: tells how many calls this rank has begun.

    """

    def __init__(self, rank: int, ranks: int, timeout_s: float, patience_s: float,
                 end: Callable[[str], None], calls: Callable[[], int]) -> None:
        self._rank, self._others = rank, [other for other in range(ranks) if other != rank]
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._end, self._calls = end, calls
        self.letters: Messenger | None = None
        self.sentence: str | None = None
        self.known = asyncio.Event()
        self._found: set[bytes] = set()
        self._so_far: dict[int, int] = {}
        self._all_answered = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, why: str, kind: bytes = FAILED) -> None:
        """Say what failed. Of LATE ``why`` is the call, with its number before it."""
        if self.sentence is None and not self._found & {FAILED, kind}:
            self._found.add(kind)
            self._begin(self._ask_lower_ranks(why, kind))

    def hear(self, rank: int, kind: bytes, text: str) -> None:
        """Take the news of another rank."""
        if kind == DECIDED:
            self._settle_and_tell(text)
        elif kind == HOW_FAR:
            self._begin(self._tell(rank, SO_FAR, str(self._calls())))
        elif kind == SO_FAR:
            self._so_far[rank] = int(text)
            if len(self._so_far) == len(self._others):
                self._all_answered.set()
        else:
            self.find(text, kind)

    def settle(self, sentence: str) -> None:
        """Know the end, for this rank alone."""
        if self.sentence is None:
            self.sentence = sentence
            self.known.set()
            self._end(sentence)

    async def finish(self) -> None:
        """Tell others what there is to tell, for a while."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=TELL_S)

    async def close(self) -> None:
        """Tell others what there is to tell, and then nobody any more."""
        await self.finish()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- Finding the judge ----

    async def _ask_lower_ranks(self, why: str, kind: bytes) -> None:
        for rank in range(self._rank):
            self._begin(self._tell(rank, kind, why))
            await self._hear_of(rank)
            if self.sentence is not None:
                return
        await self._judge(why, kind)

    async def _hear_of(self, rank: int) -> None:
        """Wait for the sentence while a rank may still say it."""
        assert self.letters
        ways = [asyncio.ensure_future(way)
                for way in (self.known.wait(), self.letters.heard_all_of(rank))]
        await asyncio.wait(ways, timeout=self._patience_s, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()

    # ---- Judging ----

    async def _judge(self, why: str, kind: bytes) -> None:
        if kind == SYMPTOM:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.known.wait(), self._patience_s)
        elif kind == LATE:
            why = await self._name_the_missing(why)
        self._settle_and_tell(why)

    async def _name_the_missing(self, call: str) -> str:
        number, what = call.split(" ", 1)
        for rank in self._others:
            self._begin(self._tell(rank, HOW_FAR, ""))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_answered.wait(), TELL_S)
        so_far = {self._rank: self._calls(), **self._so_far}
        missing = [rank for rank in sorted([self._rank, *self._others])
                   if so_far.get(rank, 0) < int(number)]
        who = "rank " if len(missing) == 1 else "ranks "
        return (f"call {number}, {what}: not over after {self._timeout_s:g} s, "
                + (f"{who}{', '.join(map(str, missing))} did not come" if missing
                   else "though all ranks came"))

    def _settle_and_tell(self, sentence: str) -> None:
        if self.sentence is None:
            self.settle(sentence)
            for rank in self._others:
                self._begin(self._tell(rank, DECIDED, sentence))

    async def _tell(self, rank: int, kind: bytes, text: str) -> None:
        assert self.letters
        with contextlib.suppress(GroupError):  # it is gone
            await self.letters.tell(rank, kind, text)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
