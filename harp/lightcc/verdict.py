"""How the ranks of a group come to one sentence about why it has failed.

Several ranks may find a failure at once, and not the same one. So rank 0 decides by the first that
it hears of, and tells all; who cannot reach rank 0 decides for itself. Where a call takes too long,
rank 0 waits a moment for others that say so, too: who has not is the one that did not come.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from harp.lightcc.peers import GroupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from harp.lightcc.letters import Letters

FAILED, LATE, DECIDED = b"f", b"l", b"d"
TELL_S = 1.0
"""For so long a rank tries to reach others."""


class Verdict:
    """One rank's part in it.

    Args:
        rank: its number.
        ranks: how many there are.
        timeout_s: the group's, for the sentence.
        end: is called once, with the sentence.

    """

    def __init__(self, rank: int, ranks: int, timeout_s: float,
                 end: Callable[[str], None]) -> None:
        self._rank, self._ranks, self._timeout_s, self._end = rank, ranks, timeout_s, end
        self.letters: Letters | None = None
        self.sentence: str | None = None
        self.known = asyncio.Event()
        self._found = False
        self._late: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def find(self, why: str, kind: bytes = FAILED) -> None:
        """Say that something failed, or (LATE) that the call ``why`` takes too long."""
        if self.sentence is not None or self._found:
            return
        self._found = True
        if self._rank == 0:
            self._judge(0, kind, why)
        else:
            self._tasks.append(asyncio.ensure_future(self._report(why, kind)))

    def hear(self, rank: int, kind: bytes, text: str) -> None:
        """Take the news of another rank."""
        if kind == DECIDED:
            self.settle(text)
        else:
            self._judge(rank, kind, text)

    def settle(self, sentence: str) -> None:
        """Know the end."""
        if self.sentence is None:
            self.sentence = sentence
            self.known.set()
            self._end(sentence)

    def _judge(self, rank: int, kind: bytes, text: str) -> None:
        if kind == FAILED:
            self._decide(text)
            return
        self._late.add(rank)
        if len(self._late) == 1:
            asyncio.get_running_loop().call_later(TELL_S / 2, self._decide_late, text)

    def _decide_late(self, call: str) -> None:
        missing = sorted(set(range(self._ranks)) - self._late)
        who = "rank " if len(missing) == 1 else "ranks "
        self._decide(f"{call}: not over after {self._timeout_s:g} s, "
                     + (f"{who}{', '.join(map(str, missing))} did not come" if missing
                        else "though all ranks came"))

    def _decide(self, sentence: str) -> None:
        if self.sentence is None:
            self.settle(sentence)
            self._tasks.append(asyncio.ensure_future(self._tell_all(sentence)))

    async def _report(self, why: str, kind: bytes) -> None:
        assert self.letters
        try:
            await asyncio.wait_for(self.letters.tell(0, kind, why), TELL_S)
            await asyncio.wait_for(self.known.wait(), TELL_S)
        except asyncio.TimeoutError:
            self._decide(why)
        except GroupError:  # rank 0 is gone, and its last letter may have said why
            await self.letters.heard_all_of(0, TELL_S)
            self._decide(why)

    async def _tell_all(self, sentence: str) -> None:
        assert self.letters
        told = [self.letters.tell(rank, DECIDED, sentence)
                for rank in range(self._ranks) if rank != self._rank]
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*told, return_exceptions=True), TELL_S)

    async def close(self) -> None:
        """Tell nobody any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
