"""The queue of a group's collectives: calls run in the order in which they were made.

A thread of the group runs them. If the caller blocks and the queue is empty, its own thread runs
the call; this saves two thread switches.

A call begins when the calls before it have begun all their sends and receives, and ends after them.
So a link that is idle, because one direction or one rank was faster, gets work: without this, a
ring over 400 Mb/s stood still for 40 ms between two buckets of DDP. A call on memory that another
call works on waits until that call is over. (Copies for a call, such as those of a tensor that is
not contiguous, are made before and after it, in no order with other calls.)
"""

from __future__ import annotations

import json
import queue
import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from harp.lightcc.failure import DIFFERS, FAILED, LATE, SYMPTOM, GroupError
from harp.lightcc.mover import RUNS, CancelledError, DiffersError, LateError, SizeError
from harp.lightcc.program import read_descriptor

if TYPE_CHECKING:
    from harp.lightcc.failure import Failure
    from harp.lightcc.mover import Mover
    from harp.lightcc.program import Program


class _Call(NamedTuple):
    """A collective that waits for the group's thread, or is run by it."""

    program: Program
    memory: Any
    """The memory that the program points to, kept alive."""
    future: Future[None]


class Waiter(threading.local):
    """Whether this thread blocks on its calls; it then runs them itself, if it can."""

    here = False

    def __enter__(self) -> None:
        """Block on the calls made from here on."""
        self.here = True

    def __exit__(self, *_: object) -> None:
        """Block no longer."""
        self.here = False


OVER: Future[None] = Future()
"""The future of every call that was over before it returned."""
OVER.set_result(None)


def _failed_future(sentence: str) -> Future[None]:
    future: Future[None] = Future()
    future.set_exception(GroupError(sentence))
    return future


class CallQueue:
    """The calls of one rank of a group.

    Args:
        rank: the number of this rank, for messages.
        timeout_s: a call that takes longer fails the group.
        failure: the group's; a call that fails is reported to it.

    """

    def __init__(self, rank: int, timeout_s: float, failure: Failure) -> None:
        self._rank, self._timeout_ns = rank, int(timeout_s * 1e9)
        self._failure = failure
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._order = threading.Lock()
        self._queued = 0
        """Calls that wait for the group's thread or are run by it."""
        self._takes_none = False
        self._is_closed = False
        """Whether the group's thread has taken the last of its calls."""
        self._turn = threading.Lock()
        self.waiter = Waiter()

    def start(self, mover: Mover) -> None:
        """Start the thread that runs calls."""
        self._mover = mover
        self._server = threading.Thread(target=self._serve_calls, daemon=True,
                                        name=f"lightcc {self._rank} calls")
        self._server.start()

    def begin(self, program: Program, memory: Any) -> Future[None]:
        """Queue a program, or run it if this thread blocks on it and the queue is empty."""
        if self.waiter.here and self._turn.acquire(blocking=False):
            try:
                if not self._queued:
                    return self._run_here(program)
            finally:
                self._turn.release()
        call = _Call(program, memory, Future())
        with self._order:
            if self._takes_none:
                return _failed_future(self._failure.sentence or "the group is closed")
            self._queued += 1
            self._queue.put(call)
            if self._queued > 1:
                self._mover.hurry()
        return call.future

    def fail(self, why: str) -> str:
        """Fail the group before another call begins; gives the sentence."""
        return self._fail_group(why, FAILED)

    def close(self) -> None:
        """Run the calls that were made, and take no more."""
        with self._order:
            self._takes_none = True
            self._queue.put(None)
        self._server.join()
        with self._turn:  # a caller's thread may still run a call
            pass

    def forked(self) -> None:
        """Take no calls: a child of fork has no thread for them, and its locks may be held."""
        self._order, self._turn, self._takes_none = threading.Lock(), threading.Lock(), True

    # ---- In the caller's thread ----

    def _run_here(self, program: Program) -> Future[None]:
        sentence = self._failure.sentence
        if sentence is not None:
            return _failed_future(sentence)
        self._number_call(program)
        try:
            program.begin()
            self._mover.run(program.pieces, program.pieces_n, program.work, self._timeout_ns)
            if program.finish:
                program.finish()
        except Exception as error:  # whatever it is, all ranks must hear of it
            return _failed_future(self._fail_group(*self._explain(program, error)))
        except BaseException as error:  # as Ctrl-C, in a thread that waits
            self._fail_group(f"call {self._failure.calls_begun}, {program.what}: "
                             f"{type(error).__name__} at rank {self._rank}", FAILED)
            raise
        return OVER

    def _number_call(self, program: Program) -> None:
        program.number[0] = self._failure.begin_call(program.what)

    def _fail_group(self, why: str, kind: bytes) -> str:
        """Fail the group, and end what may still use a call's memory; returns the sentence."""
        sentence = self._failure.fail(why, kind)
        self._mover.close_connections()
        return sentence

    def _explain(self, program: Program, error: Exception) -> tuple[str, bytes]:
        """Return why a call has failed, and the kind of failure."""
        number = int(program.number[0])
        which = f"call {number}, {program.what}"
        if isinstance(error, LateError):
            return f"{number} {program.what}", LATE
        if isinstance(error, CancelledError):
            return which, FAILED
        if isinstance(error, SizeError) and program.same_sizes:
            return f"{which}: {error}", SYMPTOM
        if isinstance(error, SizeError):  # it came before the descriptor of another call, or alone
            own = {self._rank: program.what}
            return json.dumps([number, program.what, own, f"{which}: {error}"]), DIFFERS
        if isinstance(error, DiffersError):
            both = {error.peer: read_descriptor(error.descriptor), self._rank: program.what}
            return json.dumps([number, program.what, both]), DIFFERS
        return f"{which}: {error}", FAILED

    # ---- In the group's thread ----

    def _serve_calls(self) -> None:
        while call := self._take_call(wait=True):
            with self._turn:
                self._run_from(call)
            del call  # with the memory that it kept

    def _take_call(self, *, wait: bool) -> _Call | None:
        """Return the next call, or None if none waits now or ever again."""
        if self._is_closed:
            return None
        try:
            call = self._queue.get(block=wait)
        except queue.Empty:
            return None
        self._is_closed = call is None
        return call

    def _run_from(self, first: _Call) -> None:
        """Run a call and those that come meanwhile, until none is under way."""
        under_way: deque[_Call] = deque()
        call: _Call | None = first
        while call or under_way:
            if call and self._may_begin(call, under_way):
                self._begin_call(call, under_way)
                call = self._take_call(wait=False)
            else:
                self._advance(under_way)
                call = call or self._take_call(wait=False)

    @staticmethod
    def _may_begin(call: _Call, under_way: deque[_Call]) -> bool:
        return len(under_way) < RUNS and all(call.program.is_apart(other.program)
                                             for other in under_way)

    def _begin_call(self, call: _Call, under_way: deque[_Call]) -> None:
        sentence = self._failure.sentence
        if sentence is not None:
            self._end_call(call, sentence)
            return
        program = call.program
        self._number_call(program)
        try:
            program.begin()
        except Exception as error:  # whatever it is, all ranks must hear of it
            self._end_call(call, self._fail_group(*self._explain(program, error)))
            return
        self._mover.add(program.pieces, program.pieces_n, program.work, self._timeout_ns)
        under_way.append(call)

    def _advance(self, under_way: deque[_Call]) -> None:
        program = under_way[0].program
        try:
            if not self._mover.go_on():
                return
            if program.finish:
                program.finish()
        except Exception as error:  # whatever it is, all ranks must hear of it
            failed = under_way[self._mover.failed].program
            sentence = self._fail_group(*self._explain(failed, error))
            while under_way:
                self._end_call(under_way.popleft(), sentence)
        else:
            self._end_call(under_way.popleft())

    def _end_call(self, call: _Call, sentence: str | None = None) -> None:
        with self._order:
            self._queued -= 1
        if sentence is None:
            call.future.set_result(None)
        else:
            call.future.set_exception(GroupError(sentence))
