"""A compiled step of an optimizer, which schedules of any of its numbers do not compile again.

torch guards the numbers in ``param_groups``: a learning rate, a momentum, betas. Those that change
are tensors while the step runs, and numbers again afterwards, so that schedulers and users find
what they put there. The learning rate is taken for one that changes from the start; others are
learned from the first steps, which run eagerly, as does the first of all, which makes the state.

Where an optimizer does not compile with a tensor (SGD asks whether its momentum is zero), its steps
run eagerly, and a line in the log says so.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from harp.ttf.compiler.decisions import Decision, fingerprint
from harp.ttf.compiler.variants import Variant, compiling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harp.ttf.compiler.decisions import Kept

log = logging.getLogger(__name__)

LEARN = 4
"""Steps that run eagerly before a decision."""
Place = tuple[int, str]
"""A group's number; and a number's name in it, with its position where there are several."""


class Step:
    """An optimizer's step, called with no arguments."""

    def __init__(self, optimizer: torch.optim.Optimizer, kept: Kept,
                 backend: str | Callable[..., Any] = "inductor") -> None:
        self._optimizer, self._kept = optimizer, kept
        self._variant = Variant("step", backend, dynamic=False, optimize=False)
        self._name = _named(optimizer)
        self._last = numbers(optimizer)
        self._tensors = {place: torch.tensor(value) for place, value in self._last.items()
                         if place[1] == "lr"}
        self._calls = 0
        self._thread: threading.Thread | None = None

    def __call__(self) -> Any:
        """Run a step."""
        self._calls += 1
        self._look()
        if not self._ready():
            return self._optimizer.step()
        with self._as_tensors():
            if self._variant.ready:
                result = self._variant(self._optimizer.step, (), {})
            else:
                with compiling:
                    result = self._variant(self._optimizer.step, (), {})
                self._settle()
        if self._variant.unsaved:
            self._variant.unsaved = False
            self._keep()
        return result

    def wait(self) -> None:
        """Wait for what rank 0 compiles, on other ranks."""
        if self._thread is not None:
            self._thread.join()

    def _ready(self) -> bool:
        """Tell whether it is time to compile; on other ranks, not before rank 0 did."""
        if self._variant.ready or self._calls == 1:
            return self._variant.ready
        known = self._kept.get(self._name)
        if known is not None:
            self._lift(known.counters)
            return True
        if self._calls <= LEARN:
            return False
        if self._thread is None and not self._kept.first:
            self._thread = threading.Thread(target=self._kept.from_first_rank, args=(self._name,),
                                            name="harp.ttf.compile")
            self._thread.start()
        return self._thread is None or not self._thread.is_alive()

    def _look(self) -> None:
        """Note numbers that changed since the last step: from now on they are tensors."""
        now = numbers(self._optimizer)
        self._lift(tuple(place for place, value in now.items() if self._last.get(place) != value))
        self._last = now

    def _lift(self, places: tuple[Place, ...]) -> None:
        for place in places:
            if place in self._last and place not in self._tensors:
                self._tensors[place] = torch.tensor(self._last[place])

    @contextmanager
    def _as_tensors(self) -> Iterator[None]:
        """Put tensors where numbers change, and the numbers back."""
        groups, kept = self._optimizer.param_groups, []
        for place, tensor in self._tensors.items():
            tensor.fill_(self._last[place])
        for number, name in {(number, name.partition(".")[0]) for number, name in self._tensors}:
            value = groups[number][name]
            kept.append((groups[number], name, value))
            groups[number][name] = (
                tuple(self._tensors.get((number, f"{name}.{position}"), each)
                      for position, each in enumerate(value))
                if isinstance(value, tuple | list) else self._tensors[number, name])
        try:
            yield
        finally:
            for group, name, value in kept:
                group[name] = value

    def _settle(self) -> None:
        self._variant.settle()
        if not self._variant.graphs:
            log.warning("%s runs eagerly: it does not compile with %s in tensors",
                        type(self._optimizer).__name__,
                        ", ".join(sorted({name for _, name in self._tensors})))
        if self._kept.get(self._name) is None:
            self._keep()

    def _keep(self) -> None:
        self._kept.add(self._name, Decision(counters=tuple(sorted(self._tensors)),
                                            why="one static graph of an optimizer's step"))


def numbers(optimizer: torch.optim.Optimizer) -> dict[Place, float]:
    """Give the floats of an optimizer's groups."""
    found: dict[Place, float] = {}
    for number, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if type(value) is float:
                found[number, name] = value
            elif isinstance(value, tuple | list) and name != "params":
                found |= {(number, f"{name}.{position}"): each
                          for position, each in enumerate(value) if type(each) is float}
    return found


def _named(optimizer: torch.optim.Optimizer) -> str:
    """Name an optimizer and its parameters' shapes, the same in every process."""
    switches = [{name: value for name, value in group.items()
                 if value is None or isinstance(value, bool)} for group in optimizer.param_groups]
    return fingerprint({f"{number}.{place}": parameter
                        for number, group in enumerate(optimizer.param_groups)
                        for place, parameter in enumerate(group["params"])},
                       type(optimizer).__qualname__, repr(switches))
