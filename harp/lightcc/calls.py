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


class _Waiter(threading.local):
    """Whether the thread waits for what it calls."""

    here = False

    def __enter__(self) -> None:
        """It does, from now on."""
        self.here = True

    def __exit__(self, *_: object) -> None:
        """No longer."""
        self.here = False


_OVER: Future[None] = Future()
"""Of every call that was carried out before it returned."""
_OVER.set_result(None)


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
        self._rank, self._timeout_s = rank, timeout_s
        self._fail, self._failure = fail, failure
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._order = threading.Lock()
        self._unfinished = 0
        self._turn = threading.Lock()
        self.waiter = _Waiter()
        """While a thread has entered it, what it calls is carried out by it, if it can be."""
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
        with self._order:
            here = not self._unfinished and self.waiter.here
            self._unfinished += 1
            if not here:
                call = _Call(program, memory, Future())
                self._queue.put(call)
                return call.future
        return self._serve(program)

    def close(self) -> None:
        """Carry out what was begun, and no more."""
        self._queue.put(None)
        self._server.join()

    def _serve_calls(self) -> None:
        for call in iter(self._queue.get, None):
            future = self._serve(call.program)
            if future is _OVER:
                call.future.set_result(None)
            else:
                call.future.set_exception(future.exception())

    def _serve(self, program: Program) -> Future[None]:
        try:
            with self._turn:
                return self._carry_out(program)
        finally:
            with self._order:
                self._unfinished -= 1

    def _carry_out(self, program: Program) -> Future[None]:
        sentence = self._failure()
        if sentence is not None:
            return _failed(sentence)
        self.made += 1
        which = f"call {self.made}, {program.what}"
        try:
            self._run(program)
        except LateError:
            return _failed(self._fail(f"{self.made} {program.what}", LATE))
        except CancelledError:
            return _failed(self._fail(which, FAILED))
        except SizeError as error:
            kind = SYMPTOM if program.same_sizes else FAILED
            return _failed(self._fail(f"{which}: {error}", kind))
        except Exception as error:  # whatever it is, all ranks must hear of it
            return _failed(self._fail(f"{which}: {error}", FAILED))
        except BaseException as error:  # as Ctrl-C, in a thread that waits
            self._fail(f"{which}: {type(error).__name__} at rank {self._rank}", FAILED)
            raise
        return _OVER

    def _run(self, program: Program) -> None:
        program.number(self.made)
        try:
            self._mover.run(program.pieces, program.pieces_n, program.work, self._timeout_s)
        except DiffersError as error:
            both = sorted([(error.peer, heard_what(error.heard)), (self._rank, program.what)])
            raise GroupError("ranks do not agree: " + ", ".join(
                f"rank {rank} calls {what}" for rank, what in both)) from None
        if program.finish:
            program.finish()
