"""Compiled variants of a module, each with a code object, and so a cache in torch, of its own.

torch keeps what it compiled by code object, eight entries at most, and runs a function eagerly from
then on. A variant has one entry as long as its guards hold. Each further one is reported, with the
command that names the guard, and at torch's limit the variant is given up, which is reported, too.
"""

from __future__ import annotations

import copy
import logging
import os
import threading
import time
import types
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from harp.first_line import first_line
from harp.ttf.compiler import passes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import nn

log = logging.getLogger(__name__)

compiling = threading.Lock()
"""One compilation at a time: they share torch's caches, and this machine."""
_cut_off = False


def _after_fork() -> None:
    global _cut_off  # noqa: PLW0603  (a property of the process)
    _cut_off = compiling.locked()


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def in_turn() -> Iterator[None]:
    """Compile when no other thread does. RuntimeError where none ever will have ended."""
    if _cut_off:
        raise RuntimeError("this process was forked while its parent compiled, so torch's locks "
                           "are held for ever")
    with compiling:
        yield


def stays_eager(what: object, error: Exception) -> str:
    """Log the reason, which dynamo's error has in it, unless the program has ended; return it."""
    why = first_line(getattr(error, "inner_exception", error))
    if threading.main_thread().is_alive():
        log.warning("%s stays eager: %s", type(what).__name__, why)
    return why


def called(module: Any, args: Any, kwargs: Any) -> Any:
    """Call a module."""
    return module(*args, **kwargs)


class Variant:
    """A module, compiled for static sizes or for any."""

    def __init__(self, name: str, backend: str | Callable[..., Any], *, dynamic: bool,
                 optimize: bool = True) -> None:
        self.name, self.ready, self.given_up = name, False, False
        self._passes, self._alive = optimize, list[Any]()
        self.graphs = 0
        self.unsaved = False
        """Whether something was compiled again since the last save."""
        self._known = 0
        self._limit = torch._dynamo.config.recompile_limit
        self._recompiles = 0
        code = called.__code__.replace(co_name=f"harp_{name}")
        self._call = torch.compile(types.FunctionType(code, globals()), dynamic=dynamic,
                                   backend=self._counted(backend))

    def _counted(self, backend: str | Callable[..., Any]) -> Callable[..., Any]:
        compiles = (torch._dynamo.lookup_backend(backend) if isinstance(backend, str)
                    else backend)

        def compile_graph(graph: Any, inputs: Any, **options: Any) -> Any:
            self.graphs += 1
            if self._passes:
                self._alive += passes.optimize(graph)
                if backend == "inductor":
                    options["config_patches"] = {"post_grad_custom_pre_pass": passes.ShareCasts()}
            return compiles(graph, inputs, **options)
        return compile_graph

    def __call__(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Run a module that this variant is of."""
        if self.given_up:
            return module(*args, **kwargs)
        if not self.ready:
            # Without duck shapes, sizes that are equal by chance in this call may differ in others.
            # torch counts one entry for each user of shared code (its wrapper of optimizers' steps)
            # as a recompile, so a first compilation has the larger limit of all code together.
            with torch.fx.experimental._config.patch(use_duck_shape=False), \
                    torch._dynamo.config.patch(
                        recompile_limit=torch._dynamo.config.accumulated_recompile_limit):
                return self._call(module, args, kwargs)
        result = self._call(module, args, kwargs)
        if self.graphs != self._known:
            self._report()
        return result

    @staticmethod
    def bound_to_sizes() -> bool:
        """Tell whether what torch compiled last was due to a size that it took for a constant."""
        last = torch._dynamo.utils.get_compilation_metrics()[-1]
        return "size mismatch" in (last.recompile_reason or "")

    def settle(self) -> None:
        """Take what was compiled so far as the variant."""
        self._known, self.ready = self.graphs, True

    def _report(self) -> None:
        self._known, self.unsaved = self.graphs, True
        self._recompiles += 1
        log.warning("%s was compiled again (%d); `harp recompiles -- COMMAND` names the guard",
                    self.name, self._recompiles)
        if self._recompiles >= self._limit - 1:
            self.given_up = True
            log.error("%s runs eagerly from now on: it met torch's recompile limit of %d",
                      self.name, self._limit)


Place = tuple[int, str]
"""A dictionary's number among some, and the name of a number in it; in a tuple with its position,
as in ``betas.0``."""


def numbers(holders: Iterable[dict[str, Any]], *, in_tuples: bool = False) -> dict[Place, Any]:
    """Give the numbers in attributes of modules, or the floats in an optimizer's groups."""
    found: dict[Place, Any] = {}
    for at, holder in enumerate(holders):
        for name, value in holder.items():
            if type(value) is float or (type(value) is int and not in_tuples):
                found[at, name] = value
            elif in_tuples and isinstance(value, tuple | list) and name != "params":
                found |= {(at, f"{name}.{position}"): each for position, each in enumerate(value)
                          if type(each) is float}
    return found


class Changes:
    """The places of numbers that change from call to call, which torch would take for constants."""

    def __init__(self, first: dict[Place, Any]) -> None:
        self.last, self.places = first, set[Place]()

    def look(self, now: dict[Place, Any]) -> None:
        """Note what changed since the last look."""
        self.places |= {place for place, value in now.items()
                        if self.last.get(place, value) != value}
        self.last = now


def number_at(holders: Sequence[dict[str, Any]], place: Place) -> Any:
    """Give the number that is at a place now."""
    name, _, position = place[1].partition(".")
    value = holders[place[0]][name]
    return value[int(position)] if position else value


def tensors_for(holders: Sequence[dict[str, Any]],
                places: Iterable[Place]) -> dict[Place, torch.Tensor]:
    """Make tensors of the numbers at some places."""
    found = {place: number_at(holders, place) for place in places}
    return {place: torch.tensor(value, dtype=torch.float64 if type(value) is float else torch.int64)
            for place, value in found.items()}


@contextmanager
def in_tensors(holders: Sequence[dict[str, Any]],
               tensors: Mapping[Place, torch.Tensor]) -> Iterator[None]:
    """Put tensors where numbers are while compiled code runs; they are numbers again afterwards."""
    kept = []
    for at, name in {(at, name.partition(".")[0]) for at, name in tensors}:
        value = holders[at][name]
        kept.append((holders[at], name, value))
        holders[at][name] = (
            tuple(tensors.get((at, f"{name}.{position}"), each)
                  for position, each in enumerate(value))
            if isinstance(value, tuple | list) else tensors[at, name])
    try:
        yield
    finally:
        for holder, name, value in kept:
            left = holder[name]
            holder[name] = (value if isinstance(value, tuple | list) else
                            type(value)(left.item()) if torch.is_tensor(left) else left)


@contextmanager
def trial(module: nn.Module) -> Iterator[nn.Module]:
    """Copy a module for trials; dynamic tables are neither copied nor changed by it."""
    shared = [each for part in module.modules() for each in getattr(part, "uncopied", ())]
    made = copy.deepcopy(module, {id(each): each for each in shared})
    if not shared:
        yield made
        return
    from harp.ttf.embedding.operators import rehearsal
    with rehearsal():
        yield made


def gradients_too(result: Any, parameters: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Run the backward pass, which torch compiles at its first use, and leave no gradient behind.

    Outputs are weighted by position, so that one in a wrong place has another gradient.
    """
    leaves = [leaf for leaf in pytree.tree_leaves(result)
              if torch.is_tensor(leaf) and leaf.requires_grad]
    if not leaves or not parameters:
        return []
    weights = [torch.linspace(0.5, 1.5, leaf.numel(), device=leaf.device).reshape(leaf.shape)
               .to(leaf.dtype) for leaf in leaves]
    return list(torch.autograd.grad(leaves, parameters, weights, allow_unused=True))


def seconds_of(run: Callable[[], Any], times: int = 3) -> float:
    """Give the least seconds of a call, an accelerator's work included."""
    def now_s() -> float:
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return time.perf_counter()

    least = float("inf")
    for _ in range(times):
        begin = now_s()
        run()
        least = min(least, now_s() - begin)
    return least
