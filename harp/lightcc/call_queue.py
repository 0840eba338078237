"""A group's collectives, carried out in the order in which they were called.

By a thread of the group; or, where the caller waits for its call at once and nothing is before it,
by the caller's own, which saves handing it over and back.

A call begins when all of those before it have begun all that they send and receive, and is over
after them. So a line that is idle, since one direction or one rank was faster than the other, has
something to do: a ring over 400 Mb/s stood still for 40 ms between two buckets of DDP else.
Calls on memory that others work on wait until these are over. (What is copied for a call, as a
tensor that is not contiguous, is copied before and after, in no order with other calls.)
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from harp.lightcc.failure import FAILED, LATE, SYMPTOM
from harp.lightcc.mover import RUNS, CancelledError, DiffersError, LateError, SizeError
from harp.lightcc.peers import GroupError
from harp.lightcc.program import heard_what

if TYPE_CHECKING:
    from collections.abc import Callable

    from harp.lightcc.mover import Mover
    from harp.lightcc.program import Program


class _Call(NamedTuple):
    """A collective that is handed to the group's thread."""

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
        fail: fails a call at all ranks, by why and the kind of failure (`harp.lightcc.failure`);
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
        self._takes_none = False
        self._is_closed = False
        """Whether the group's thread has come to the end of its calls."""
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
        """Carry out a program in its turn."""
        if self.waiter.here and self._turn.acquire(blocking=False):
            try:
                if not self._queued:
                    return self._carry_out(program)
            finally:
                self._turn.release()
        call = _Call(program, memory, Future())
        with self._order:
            if self._takes_none:
                return _failed(self._failure() or "the group is closed")
            self._queued += 1
            self._queue.put(call)
            if self._queued > 1:
                self._mover.hurry()
        return call.future

    def close(self) -> None:
        """Carry out what was begun, and no more."""
        with self._order:
            self._takes_none = True
            self._queue.put(None)
        self._server.join()
        with self._turn:  # a caller's thread may still carry a call out
            pass

    def forked(self) -> None:
        """Take no calls: a child of fork has no thread for them, and locks that others held."""
        self._order, self._turn, self._takes_none = threading.Lock(), threading.Lock(), True

    # ---- In the caller's thread ----

    def _carry_out(self, program: Program) -> Future[None]:
        sentence = self._failure()
        if sentence is not None:
            return _failed(sentence)
        self._number(program)
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

    def _number(self, program: Program) -> None:
        self.made += 1
        program.number[0] = self.made

    def _why(self, program: Program, error: Exception) -> tuple[str, bytes]:
        """Say why a call has failed, and the kind of failure."""
        number = int(program.number[0])
        which = f"call {number}, {program.what}"
        if isinstance(error, LateError):
            return f"{number} {program.what}", LATE
        if isinstance(error, CancelledError):
            return which, FAILED
        if isinstance(error, SizeError):
            return f"{which}: {error}", SYMPTOM if program.same_sizes else FAILED
        if isinstance(error, DiffersError):
            both = sorted([(error.peer, heard_what(error.heard)), (self._rank, program.what)])
            return f"{which}: ranks do not agree: " + ", ".join(
                f"rank {rank} calls {what}" for rank, what in both), FAILED
        return f"{which}: {error}", FAILED

    # ---- In the group's thread ----

    def _serve_calls(self) -> None:
        while call := self._next(wait=True):
            with self._turn:
                self._carry_out_from(call)
            del call  # with the memory that it kept

    def _next(self, *, wait: bool) -> _Call | None:
        """Give the next call; None where there is none, and when there are no more."""
        if self._is_closed:
            return None
        try:
            call = self._queue.get(block=wait)
        except queue.Empty:
            return None
        self._is_closed = call is None
        return call

    def _carry_out_from(self, first: _Call) -> None:
        """Carry out a call and those that come meanwhile, until none is under way."""
        under_way: deque[_Call] = deque()
        call: _Call | None = first
        while call or under_way:
            if call and self._may_begin(call, under_way):
                self._begin(call, under_way)
                call = self._next(wait=False)
            else:
                self._go_on(under_way)
                call = call or self._next(wait=False)

    @staticmethod
    def _may_begin(call: _Call, under_way: deque[_Call]) -> bool:
        return len(under_way) < RUNS and all(call.program.is_apart(other.program)
                                             for other in under_way)

    def _begin(self, call: _Call, under_way: deque[_Call]) -> None:
        sentence = self._failure()
        if sentence is not None:
            self._end(call, sentence)
            return
        program = call.program
        self._number(program)
        self._mover.add(program.pieces, program.pieces_n, program.work, self._timeout_ns)
        under_way.append(call)

    def _go_on(self, under_way: deque[_Call]) -> None:
        program = under_way[0].program
        try:
            if not self._mover.go_on():
                return
            if program.finish:
                program.finish()
        except Exception as error:  # whatever it is, all ranks must hear of it
            sentence = self._fail(*self._why(under_way[self._mover.failed].program, error))
            while under_way:
                self._end(under_way.popleft(), sentence)
        else:
            self._end(under_way.popleft())

    def _end(self, call: _Call, sentence: str | None = None) -> None:
        with self._order:
            self._queued -= 1
        if sentence is None:
            call.future.set_result(None)
        else:
            call.future.set_exception(GroupError(sentence))
