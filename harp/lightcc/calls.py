"""A group's collectives, carried out one after the other in the order in which they were called.

By a thread of the group; or, where the caller waits for its call at once and nothing is before it,
by the caller's own, which saves handing it over and back.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from harp.lightcc.mover import CancelledError, DiffersError, LateError, SizeError
from harp.lightcc.peers import GroupError
from harp.lightcc.program import heard_what
from harp.lightcc.verdict import FAILED, LATE, SYMPTOM

if TYPE_CHECKING:
    from collections.abc import Callable

    from harp.lightcc.mover import Mover
    from harp.lightcc.program import Program


class _Call(NamedTuple):
    """A collective that waits for its turn."""

    program: Program
    memory: Any
    """What the program points to, kept."""
    future: Future[None]


class Waiter(threading.local):
    """Whether the thread waits for what it calls: it then carries it out, if it can."""

    here = False

    def __enter__(self) -> None:
        """It does, from now on."""
        self.here = True

    def __exit__(self, *_: object) -> None:
        """No longer."""
        self.here = False


OVER: Future[None] = Future()
"""Of every call that was carried out before it returned."""
OVER.set_result(None)


def _failed(sentence: str) -> Future[None]:
    future: Future[None] = Future()
    future.set_exception(GroupError(sentence))
    return future


class Calls:
    """The calls of one rank of a group.

    Args:
        rank: its number, for people.
        timeout_s: after so many seconds a call that is not over fails the group.
        fail: fails a call at all ranks, by why and the kind of failure (`harp.lightcc.verdict`);
            gives the sentence.
        failure: gives the sentence by which the group has failed, or None.

    """

    def __init__(self, rank: int, timeout_s: float, fail: Callable[[str, bytes], str],
                 failure: Callable[[], str | None]) -> None:
        self._rank, self._timeout_ns = rank, int(timeout_s * 1e9)
        self._fail, self._failure = fail, failure
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._order = threading.Lock()
        self._queued = 0
        """Calls that have been given to the group's thread and are not over."""
        self._turn = threading.Lock()
        self.waiter = Waiter()
        self.made = 0
        """How many calls have begun to be carried out."""

    def start(self, mover: Mover) -> None:
        """Begin to carry out calls."""
        self._mover = mover
        self._server = threading.Thread(target=self._serve_calls, daemon=True,
                                        name=f"lightcc {self._rank} calls")
        self._server.start()

    def begin(self, program: Program, memory: Any) -> Future[None]:
        """Carry out a program when all before it are over."""
        if self.waiter.here and self._turn.acquire(blocking=False):
            try:
                if not self._queued:
                    return self._carry_out(program)
            finally:
                self._turn.release()
        call = _Call(program, memory, Future())
        with self._order:
            self._queued += 1
            self._queue.put(call)
        return call.future

    def close(self) -> None:
        """Carry out what was begun, and no more."""
        self._queue.put(None)
        self._server.join()

    def _serve_calls(self) -> None:
        for call in iter(self._queue.get, None):
            with self._turn:
                future = self._carry_out(call.program)
            with self._order:
                self._queued -= 1
            if future is OVER:
                call.future.set_result(None)
            else:
                call.future.set_exception(future.exception())

    def _carry_out(self, program: Program) -> Future[None]:
        sentence = self._failure()
        if sentence is not None:
            return _failed(sentence)
        self.made += 1
        program.number[0] = self.made
        try:
            self._mover.run(program.pieces, program.pieces_n, program.work, self._timeout_ns)
            if program.finish:
                program.finish()
        except Exception as error:  # whatever it is, all ranks must hear of it
            return _failed(self._fail(*self._why(program, error)))
        except BaseException as error:  # as Ctrl-C, in a thread that waits
            self._fail(f"call {self.made}, {program.what}: {type(error).__name__} at rank "
                       f"{self._rank}", FAILED)
            raise
        return OVER

    def _why(self, program: Program, error: Exception) -> tuple[str, bytes]:
        """Say why a call has failed, and the kind of failure."""
        which = f"call {self.made}, {program.what}"
        if isinstance(error, LateError):
            return f"{self.made} {program.what}", LATE
        if isinstance(error, CancelledError):
            return which, FAILED
        if isinstance(error, SizeError):
            return f"{which}: {error}", SYMPTOM if program.same_sizes else FAILED
        if isinstance(error, DiffersError):
            both = sorted([(error.peer, heard_what(error.heard)), (self._rank, program.what)])
            return f"{which}: ranks do not agree: " + ", ".join(
                f"rank {rank} calls {what}" for rank, what in both), FAILED
        return f"{which}: {error}", FAILED
