"""A compiled step of an optimizer, which schedules of any of its numbers do not compile again.

torch guards the numbers in ``param_groups``: a learning rate, a momentum, betas. Those that change
are tensors while the step runs, and numbers again afterwards, so that schedulers and users find
what they put there. The learning rate is taken for one that changes from the start; others are
learned from the first steps, which run eagerly, as does the first of all, which makes the state.

Once the eager steps took as long as a compilation takes at least (`harp.ttf.compiler.break_even`),
a copy of the optimizer is compiled in the background and timed (`_Trial`). Steps change over only
if those to come save more than the change costs. torch's guards know an optimizer by its identity,
so the optimizer itself is traced once more, and one step waits for that. The compiled code comes
from torch's cache then.

Where an optimizer does not compile with a tensor (SGD asks whether its momentum is zero), its steps
run eagerly, and a line in the log says so.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from harp.ttf.compiler.break_even import LEAST_S, OF_A_STEPS_PARAMETER_S
from harp.ttf.compiler.decisions import Decision, fingerprint
from harp.ttf.compiler.variants import (
    Changes,
    Place,
    Variant,
    compiling,
    in_tensors,
    in_turn,
    number_at,
    numbers,
    seconds_of,
    stays_eager,
    tensors_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from harp.ttf.compiler.decisions import Kept

log = logging.getLogger(__name__)

LEARN = 4
"""Steps that run eagerly before a decision."""
_variant = partial(Variant, "step", dynamic=False, optimize=False)


class Step:
    """An optimizer's step, called with no arguments."""

    def __init__(self, optimizer: torch.optim.Optimizer, kept: Kept, *, horizon: int = 1000,
                 aside: bool = True, after_s: float | None = None,
                 backend: str | Callable[..., Any] = "inductor") -> None:
        """Take an optimizer, and decisions of earlier starts; the rest is as in `Settings`.

        If not ``aside``, the step after the first `LEARN` compiles, and training waits.
        """
        self._optimizer, self._kept, self._backend = optimizer, kept, backend
        self._horizon, self._aside = horizon, aside
        self._variant = _variant(backend=backend)
        self._name = _named(optimizer)
        self._changes = Changes(numbers(optimizer.param_groups, in_tuples=True))
        self._tensors: dict[Place, torch.Tensor] = {}
        self._lift(place for place in self._changes.last if place[1] == "lr")
        self._calls = 0
        parameters_n = sum(len(group["params"]) for group in optimizer.param_groups)
        self._eager_s = 0.0
        self._enough_s = (LEAST_S + OF_A_STEPS_PARAMETER_S * parameters_n if after_s is None
                          else after_s)
        self._thread: threading.Thread | None = None
        self.decision: Decision | None = None

    def __call__(self) -> Any:
        """Run a step."""
        self._calls += 1
        self._changes.look(numbers(self._optimizer.param_groups, in_tuples=True))
        self._lift(self._changes.places)
        if self._variant.ready:
            result = self._compiled_step()
        elif self._decided() and compiling.acquire(blocking=False):
            try:
                result = self._compiled_step()
            finally:
                compiling.release()
            self._settle()
        else:
            begin = time.perf_counter()
            result = self._optimizer.step()
            self._eager_s += time.perf_counter() - begin
        if self._variant.unsaved:
            self._variant.unsaved = False
            self._keep()
        return result

    def wait(self) -> None:
        """Wait for what is tried in the background, or for what rank 0 compiles."""
        if self._thread is not None:
            self._thread.join()

    def decisions(self) -> list[str]:
        """Say what was decided, and why."""
        return [self.decision.why] if self.decision is not None else []

    def _compiled_step(self) -> Any:
        groups = self._optimizer.param_groups
        for place, tensor in self._tensors.items():
            tensor.fill_(number_at(groups, place))
        with in_tensors(groups, self._tensors):
            return self._variant(self._optimizer.step, (), {})

    def _decided(self) -> bool:
        """Tell whether it is decided that steps are compiled; begin to find out when it is time."""
        if self._calls == 1:
            return False
        if self.decision is None:
            self.decision = self._kept.get(self._name)
        if self.decision is not None:
            self._lift(self.decision.counters)
            return not self.decision.eager
        if self._calls <= LEARN:
            return False
        if self._kept.first and not self._aside:
            return True
        if self._thread is None and self._eager_s >= self._enough_s:
            trial = _Trial(self._optimizer, self._tensors) if self._kept.first else None
            # The process ends when it is through: a compiler that is cut off midway may crash.
            self._thread = threading.Thread(target=self._find_out, args=(trial,),
                                            name="harp.ttf.compile")
            self._thread.start()
        return False

    def _find_out(self, trial: _Trial | None) -> None:
        """Decide in a thread: by a trial, or on other ranks as rank 0 did."""
        try:
            if trial is None:
                decision = self._kept.from_first_rank(self._name) or Decision(
                    why="a static graph: rank 0 decided nothing")
            else:
                with in_turn():
                    decision = trial.run(max(self._horizon, self._calls), self._backend)
                if decision.eager:  # else it is kept with what the optimizer itself compiles
                    self._kept.add(self._name, decision)
            log.info("%s: %s", type(self._optimizer).__name__, decision.why)
        except Exception as error:
            decision = Decision(eager=True, why=stays_eager(self._optimizer, error))
        self.decision = decision

    def _lift(self, places: Iterable[Place]) -> None:
        """Have numbers in tensors from now on."""
        self._tensors |= tensors_for(self._optimizer.param_groups, [
            place for place in places
            if place in self._changes.last and place not in self._tensors])

    def _settle(self) -> None:
        self._variant.settle()
        if not self._variant.graphs:
            log.warning("%s runs eagerly: %s", type(self._optimizer).__name__,
                        _no_graph(self._tensors))
        if self._kept.get(self._name) is None:
            self._keep()

    def _keep(self) -> None:
        self._kept.add(self._name, Decision(
            counters=tuple(sorted(self._tensors)),
            why=self.decision.why if self.decision is not None else
            "one static graph of an optimizer's step"))


class _Trial:
    """A copy of an optimizer, which is stepped and compiled where nobody waits for it."""

    def __init__(self, optimizer: torch.optim.Optimizer, places: Iterable[Place]) -> None:
        """Note what an optimizer has just before a step; gradients are gone later."""
        self._optimizer = optimizer
        self._gradients = [None if each.grad is None else each.grad.clone()
                           for group in optimizer.param_groups for each in group["params"]]
        self._places = tuple(sorted(places))

    def run(self, horizon: int, backend: str | Callable[..., Any]) -> Decision:
        """Time eager and compiled steps, and decide how the next ``horizon`` steps run."""
        eager_s = seconds_of(self._step_of_a_copy()[1])
        step, _, graphs = self._compile_copy(backend)
        if not graphs:
            why = _no_graph(self._places)
            log.warning("%s stays eager: %s", type(self._optimizer).__name__, why)
            return Decision(eager=True, why=f"eager: {why}")
        _, change_s, _ = self._compile_copy(backend)  # torch's cache has its code
        compiled_s = seconds_of(step)
        saved_s = horizon * (eager_s - compiled_s)
        costs = (f"{horizon} steps take {horizon * eager_s:.2f} s eagerly, "
                 f"{horizon * compiled_s:.2f} s compiled, and {change_s:.2f} s to change over")
        return (Decision(counters=self._places, why=f"a static graph: {costs}")
                if saved_s > change_s else Decision(eager=True, why=f"eager: {costs}"))

    def _compile_copy(self, backend: str | Callable[..., Any]
                      ) -> tuple[Callable[[], None], float, int]:
        """Compile a copy's step; give the step, the seconds that took, and the number of graphs."""
        variant = _variant(backend=backend)
        optimizer, eager_step = self._step_of_a_copy()
        tensors = tensors_for(optimizer.param_groups, self._places)

        def step() -> None:
            with in_tensors(optimizer.param_groups, tensors):
                variant(eager_step, (), {})
        begin = time.perf_counter()
        step()
        compile_s = time.perf_counter() - begin
        variant.settle()
        return step, compile_s, variant.graphs

    def _step_of_a_copy(self) -> tuple[torch.optim.Optimizer, Callable[[], Any]]:
        """Copy the optimizer without its hooks: a hook may count steps or call other ranks."""
        made = copy.deepcopy(self._optimizer)
        for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            getattr(made, name).clear()
        copies = [each for group in made.param_groups for each in group["params"]]
        for parameter, gradient in zip(copies, self._gradients, strict=True):
            parameter.grad = gradient
        # A scheduler has put a function into the optimizer that steps the one it was made for.
        return made, partial(type(made).step, made)


def _no_graph(places: Iterable[Place]) -> str:
    names = ", ".join(sorted({name for _, name in places}))
    return f"it does not compile with {names} in tensors"


def _named(optimizer: torch.optim.Optimizer) -> str:
    """Name an optimizer and its parameters' shapes, the same in every process."""
    switches = [{name: value for name, value in group.items()
                 if value is None or isinstance(value, bool)} for group in optimizer.param_groups]
    return fingerprint({f"{number}.{place}": parameter
                        for number, group in enumerate(optimizer.param_groups)
                        for place, parameter in enumerate(group["params"])},
                       type(optimizer).__qualname__, repr(switches))
