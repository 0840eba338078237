"""The thread that runs a plan's actions beside the events.

It goes through the actions in order. Reads and writes begin ahead of their turn, as soon as the
actions that concern their slots are over, so that a disk has many under way.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from harp.angelptm.page_plan import Move

if TYPE_CHECKING:
    from collections.abc import Callable

    from harp.angelptm.cache import Cache
    from harp.angelptm.page_plan import Job, Plan

DEPTH = 32
"""Number of actions ahead of their turn at which reads and writes may begin."""


class Worker:
    """Runs one plan at a time. `run`, `wait`, `finish` and `close` are the main thread's.

    Between `finish` and `run` the thread touches nothing.
    """

    def __init__(self, cache: Cache, update: Callable[[Job], None]) -> None:
        self._cache, self._update = cache, update
        self._plan: Plan | None = None
        """It may be over before the events are: then `_need` still says what these wait for."""
        self._need: tuple[int, ...] = ()
        self._turn = threading.Condition()
        self._done, self._passed = 0, -1
        self._stopped = False
        self._error: BaseException | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="angelptm", daemon=True)
        self._thread.start()

    def run(self, plan: Plan) -> None:
        """Begin with a plan."""
        with self._turn:
            assert self._plan is None
            self._done, self._passed, self._stopped = 0, -1, False
            self._plan, self._need = plan, plan.need
            self._turn.notify_all()

    def wait(self, event: int) -> None:
        """Wait for the actions that an event needs; all before it are over."""
        self._cache.mark()
        with self._turn:
            self._passed = event - 1
            self._turn.notify_all()
            need = self._need[event]
            self._turn.wait_for(lambda: self._done >= need or self._error)
            self._raise_error()

    def finish(self, passed: int, *, stops: bool = False) -> None:
        """Wait for the end, when this many events are over.

        If it ``stops``, no action begins that comes after more: all ranks stop at the same one.
        """
        self._cache.mark()
        with self._turn:
            self._passed, self._stopped = passed, stops
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._plan is None)
            self._raise_error()

    def close(self) -> None:
        """End the thread."""
        with self._turn:
            self._ended = self._stopped = True
            self._turn.notify_all()
        self._thread.join()

    def _raise_error(self) -> None:
        if self._error:
            raise self._error

    def _serve(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._plan is not None or self._ended)
                plan = self._plan
            if plan is None:
                return
            try:
                self._run_actions(plan)
            except BaseException as error:  # the main thread raises it
                self._error = error
            with self._turn:
                self._plan = None
                self._turn.notify_all()

    def _run_actions(self, plan: Plan) -> None:
        ahead = sorted((action.start, number) for number, action in enumerate(plan.actions)
                       if isinstance(action, Move) and action.by_disk)
        begun: set[int] = set()
        for number, action in enumerate(plan.actions):
            while ahead and ahead[0][0] <= number and ahead[0][1] < number + DEPTH:
                early = ahead.pop(0)[1]
                if early > number:
                    begun.add(early)
                    self._act(plan.actions[early])
            if number not in begun:
                if not self._await_events(action.after):
                    break
                self._act(action)
            with self._turn:
                self._done = number + 1
                self._turn.notify_all()
        self._cache.settle()

    def _await_events(self, after: int) -> bool:
        with self._turn:
            self._turn.wait_for(lambda: self._passed >= after or self._stopped)
            return self._passed >= after and not self._ended

    def _act(self, action: Move | Job) -> None:
        if isinstance(action, Move):
            self._cache.move(action)
        else:
            self._update(action)
