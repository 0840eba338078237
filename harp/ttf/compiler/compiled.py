"""``harp.ttf.compile``: a module around torch.compile that does not compile without need.

    model = harp.ttf.compile(model, cache="compiled")
    loss = loss_of(model(features), labels)         # eager at first, compiled when that is ready

- Sizes are learned from the first calls. A size that varies becomes a dynamic dimension, or is
  padded to one of at most eight buckets, or calls stay eager: whichever measurement finds cheaper
  over the calls to come (`harp.ttf.compiler.compile_plan`). Padding is cut off again, and is used
  only where results and gradients are those of an unpadded call; a module that needs to know gets a
  boolean mask by keyword.
- Floats among the arguments, and numbers in modules that change from call to call, are tensors for
  the compiled code. So are an optimizer's (`harp.ttf.compiler.optimizer_step`).
- Graph passes merge look-ups and small linear layers (`harp.ttf.compiler.passes`).
- A copy of the module is compiled in the background, while calls run eagerly, once these took as
  long as a compilation takes at least (`harp.ttf.compiler.break_even`). If the compiler fails,
  calls stay eager, and the log has one line about it.
- Decisions and compiled code are kept in a folder, and rank 0 compiles for all
  (`harp.ttf.compiler.decisions`).
- A variant that is compiled again is logged, as is torch's recompile limit
  (`harp.ttf.compiler.variants`).

The copy needs memory for a second set of parameters until all is compiled.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from harp.ttf.compiler.calls import Call
from harp.ttf.compiler.compile_plan import Plan
from harp.ttf.compiler.decisions import Kept
from harp.ttf.compiler.optimizer_step import Step

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """Settings of a module's compilation."""

    learn: int = 16
    """Calls that run eagerly before a decision."""
    horizon: int = 1000
    """Least number of calls to come that a decision counts on; it counts on as many as there were,
    if these are more."""
    mask: str | None = None
    """Keyword of the module for a mask: a boolean for each place, false for padding."""
    passes: bool = True
    """Whether graph passes run (`harp.ttf.compiler.passes`)."""
    aside: bool = True
    """Whether compilation runs in the background, not between two calls."""
    after_s: float | None = None
    """Seconds of eager calls after which compilation in the background begins; by default what it
    takes at least."""
    backend: str | Callable[..., Any] = "inductor"
    kept: Kept = field(default_factory=lambda: Kept(None))


MOST_PLANS = 64
"""Kinds of calls that are learned from. An argument that is a number or an object, and another one
in each call, makes each call one of its own kind, which would be kept for ever."""


class Compiled(nn.Module):
    """A module whose calls run compiled as soon as that is ready."""

    def __init__(self, module: nn.Module, settings: Settings) -> None:
        super().__init__()
        self.module = module
        self._settings = settings
        self._plans: dict[str, Plan] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call."""
        call = Call.of(args, kwargs)
        key = call.key + str(self.module.training)
        plan = self._plans.get(key)
        if plan is None and len(self._plans) < MOST_PLANS:
            plan = self._plans[key] = Plan(self.module, key, call, self._settings)
            if len(self._plans) == MOST_PLANS:
                log.warning("calls of %s differ in more than sizes and floats: other kinds than "
                            "the first %d run eagerly; a number that changes from call to call "
                            "may be a float or a tensor", type(self.module).__name__, MOST_PLANS)
        return self.module(*args, **kwargs) if plan is None else plan.run(call)

    def __getattr__(self, name: str) -> Any:
        """Give what the module has, as torch's compiled modules do."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":  # while a copy is made
                raise
            return getattr(self.module, name)

    def wait(self) -> None:
        """Compile now what calls were learned from, and wait until it is there."""
        for plan in self._plans.values():
            plan.wait()

    def decisions(self) -> list[str]:
        """Say what was decided, and why."""
        return [plan.decision.why for plan in self._plans.values() if plan.decision is not None]


def compiled(module: Any, *, cache: str | os.PathLike[str] | None = None, **settings: Any) -> Any:
    """Compile a module; of an optimizer, give its compiled step.

    Args:
        module: a module or an optimizer.
        cache: a folder for decisions and compiled code; a second start compiles nothing.
        settings: those of `Settings`; an optimizer has horizon, aside, after_s
            and backend.

    """
    for name, least in (("learn", 1), ("horizon", 1), ("after_s", 0)):
        given, may_be_none = settings.get(name, least), name == "after_s"
        if given is None and may_be_none:
            continue
        if not isinstance(given, int | float) or not given >= least:
            raise ValueError(f"harp.ttf.compile: {name} is {given!r}; it must be at least {least}"
                             + ", or None for what a compilation takes" * may_be_none)
    if isinstance(module, torch.optim.Optimizer):
        return Step(module, Kept(cache), **settings)
    if not isinstance(module, nn.Module):
        raise TypeError(f"harp.ttf.compile takes a module or an optimizer, not "
                        f"{type(module).__name__}")
    return Compiled(module, Settings(kept=Kept(cache), **settings))
