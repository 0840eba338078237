"""Training in half precision as long as the loss does not suffer.

    controller = Controller(model, optimizer, dtype=torch.float16)
    for features, labels in batches:
        report = controller.step(lambda: loss_of(model(features), labels))

`step` runs the function under torch's autocast with torch's GradScaler, judges the result, and
applies it. A bad update is not applied: the same batch runs again in full precision, from the
same random numbers and buffers, and that is applied instead. So the function may run twice, and
must not draw its batch itself. A step is suspect if

- its loss or its gradients are not finite,
- its loss, or the norm of its gradients, leaves the robust trend of those before
  (`harp.ttf.amp.trend`), or
- it is a probe, which comes every `Policy.probe_every` steps: a loss that stands still because half
  precision rounds the gradients away looks healthy otherwise.

Half precision ends where the gradients of both precisions differ by more than `Policy.tolerance`,
where the scale collapsed, or after several non-finite losses. It comes back after a time that
doubles with each relapse, when successive probes agree. A module that overflows again and again
stays full (`harp.ttf.amp.full_modules`), and the rest goes on in half.

All ranks of a job decide alike in the same step (`harp.ttf.amp.runs`). A model that is compiled has
two variants at most, one for each precision, plus two for each module that is pinned.

Gradients are complete when `backward` returns: DDP reduces them; accumulation over several batches
is the function's business.

Of dynamic embeddings (`harp.ttf.embedding`) the optimizer is given beside the dense one. Their
gradients wait in the tables until a step, and those of a run that is not applied are forgotten.
A gradient that is not finite is seen; norms, clipping and comparisons are of the dense ones.
"""

from __future__ import annotations

import inspect
import logging
import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grads_with_norm_

from harp.module_names import modules_by_name
from harp.ttf.amp.full_modules import Search, pin
from harp.ttf.amp.runs import Before, Loss, Run, call, distance, gradients, norm_of
from harp.ttf.amp.thresholds import FIRST_PROBE, PROBE_GROWTH, Policy
from harp.ttf.amp.trend import Trend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """A step, to plot or log it."""

    loss: float
    """Mean over ranks, of the run that counted."""
    half: bool
    """Whether what was applied came from half precision."""
    applied: bool
    """Whether parameters changed: not if full precision, too, gave what is not finite."""
    again: str = ""
    """Why the batch ran in full precision as well, if it did."""


@dataclass
class _State:
    """State for a checkpoint, beside scaler and trend."""

    half: bool = True
    steps: int = 0
    half_steps: int = 0
    next_probe: int = FIRST_PROBE
    spacing: int = FIRST_PROBE
    hold: int = 0
    agreed: int = 0
    changed: int = 0
    """The step of the last change."""
    strikes: list[int] = field(default_factory=list)
    """Steps with non-finite losses in half precision."""
    overflows: dict[str, int] = field(default_factory=dict)
    pinned: list[str] = field(default_factory=list)
    switches: list[tuple[int, str]] = field(default_factory=list)


class Controller:
    """Autocast and GradScaler under a policy.

    Args:
        model: as the function of a step calls it: plain, compiled or in DDP.
        optimizer: of torch; or several, such as a dense one and a `TableOptimizer`.
        dtype: the half precision: `torch.float16` or `torch.bfloat16`, which has no scaler.
        policy: thresholds.
        clip_norm: most that the norm of gradients may be; larger ones are clipped.
        group: its ranks decide together; the default group if not given.

    """

    def __init__(self, model: nn.Module,
                 optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
                 dtype: torch.dtype = torch.float16, *, policy: Policy | None = None,
                 clip_norm: float | None = None, group: Any = None) -> None:
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"dtype is {dtype}; allowed are torch.float16 and torch.bfloat16")
        self.policy = policy or Policy()
        self.model, self.dtype = model, dtype
        self.optimizers = ((optimizer,) if isinstance(optimizer, torch.optim.Optimizer)
                           else tuple(optimizer))
        self._parameters = [parameter for each in self.optimizers for part in each.param_groups
                            for parameter in part["params"]]
        if not self._parameters:
            raise ValueError("optimizer is empty; allowed is one of torch, or several")
        if closing := [one for one in self.optimizers if _needs_closure(one)]:
            raise ValueError(f"optimizer {type(closing[0]).__name__} computes the loss itself, by "
                             "a closure; allowed is an optimizer whose step() takes no argument")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm is {clip_norm}; allowed is a number of more than 0")
        if any(part.dtype in (torch.float16, torch.bfloat16) for part in self._parameters):
            raise ValueError("parameters are in half precision already; the controller needs those "
                             "of full precision, and autocast makes the copies")
        self._device = self._parameters[0].device
        self._clip_norm, self._group = clip_norm, group
        self.scaler = torch.amp.GradScaler(self._device.type, enabled=dtype == torch.float16)
        self._first_scale = self.scaler.get_scale()
        self._trend, self._norms = (Trend(self.policy.window, self.policy.deviations)
                                    for _ in range(2))
        self._before = Before(model, self._device)
        self._state = _State(hold=self.policy.hold)
        self._names = list(dict(modules_by_name(model)))
        self._votes: list[float] = []

    @property
    def half(self) -> bool:
        """Whether the next step tries half precision."""
        return self._state.half

    @property
    def half_share(self) -> float:
        """Share of steps that half precision made."""
        return self._state.half_steps / max(1, self._state.steps)

    @property
    def pinned(self) -> tuple[str, ...]:
        """Modules that stay in full precision."""
        return tuple(self._state.pinned)

    @property
    def switches(self) -> tuple[tuple[int, str], ...]:
        """Every change: its step, and a sentence that says what and why."""
        return tuple(self._state.switches)

    def step(self, compute: Callable[[], torch.Tensor]) -> Report:
        """Compute a loss and its gradients, and apply them if they are sound."""
        state = self._state
        state.steps += 1
        probe = state.steps >= state.next_probe
        self._before.keep()
        again, half, tried = "", None, None
        if state.half or probe:
            half = self._run(compute, half=True)
            again = self._doubt(half) or ("probe" if probe else "")
            if not again:
                return self._apply(half, half=True)
            if half.finite:
                tried = [gradient.clone() for gradient in gradients(self._parameters)]
            self.scaler.update()  # it learns of an overflow here, as after a step
            self._before.restore()
        full = self._run(compute, half=False)
        if half is not None and full.finite:
            self._judge(compute, half, again, tried)
        return self._apply(full, half=False, again=again)

    def _run(self, compute: Callable[[], torch.Tensor], *, half: bool) -> Run:
        """Leave unscaled gradients in the parameters."""
        self._forget_gradients()
        with torch.autocast(self._device.type, dtype=self.dtype, enabled=half):
            loss = call(compute)
        on_its_way = Loss(loss, self._votes, self._group)
        voted, self._votes = bool(self._votes), []
        (self.scaler.scale(loss) if half else loss).backward()
        if half:
            self._unscale()
        run = on_its_way.arrive(norm_of(self._parameters))
        if voted:
            self._count(run.votes)
        return run

    def _unscale(self) -> None:
        """Divide gradients by the scale; tables divide theirs in their step."""
        for optimizer in self.optimizers:
            if not getattr(optimizer, "has_tables", False):
                self.scaler.unscale_(optimizer)
            elif self.scaler.is_enabled():
                self.scaler._check_inf_per_device(optimizer)

    def _forget_gradients(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _apply(self, run: Run, *, half: bool, again: str = "") -> Report:
        """Step, unless the run is not finite."""
        if not run.finite:
            self._forget_gradients()
            self._before.restore_buffers()
            log.warning("step %d is not applied: in full precision, too, %s", self._state.steps,
                        self._doubt(run))
            return Report(run.loss, half, applied=False, again=again)
        if self._clip_norm is not None:
            clip_grads_with_norm_(self._parameters, self._clip_norm, torch.tensor(run.norm))
        for optimizer in self.optimizers:
            if half:
                self.scaler.step(optimizer)
            else:
                optimizer.step()
        if half:
            self.scaler.update()
            self._state.half_steps += 1
        self._trend.add(run.loss)
        self._norms.add(run.norm)
        return Report(run.loss, half, applied=True, again=again)

    def _doubt(self, run: Run) -> str:
        """Say what is suspect about a run in half precision, if anything is."""
        if not math.isfinite(run.loss):
            return "the loss is not finite"
        if not math.isfinite(run.norm):
            return "gradients are not finite"
        for what, value, trend in (("loss", run.loss, self._trend),
                                   ("gradients' norm", run.norm, self._norms)):
            if trend.leaves(value):
                return f"the {what} {value:.4g} leaves its trend, which ends at {trend.limit():.4g}"
        return ""

    def _judge(self, compute: Callable[[], torch.Tensor], half: Run, again: str,
               tried: list[torch.Tensor] | None) -> None:
        """Choose the precision of the next steps; the gradients of full precision are at hand."""
        state = self._state
        apart = math.inf if tried is None else distance(tried, gradients(self._parameters))
        agrees = apart <= self.policy.tolerance
        if not state.half:
            self._after_probe_in_full(half, agrees=agrees)
        elif tried is not None:
            if not agrees:
                self._to_full(f"{again}: gradients in half precision are {apart:.0%} off")
            elif again != "probe":
                (self._trend if again.startswith("the loss") else self._norms).widen()
        else:
            self._after_overflow(compute, half, again)
        if state.half and state.steps >= state.next_probe and tried is not None:
            state.spacing = min(state.spacing * PROBE_GROWTH, self.policy.probe_every)
            state.next_probe = state.steps + state.spacing

    def _after_overflow(self, compute: Callable[[], torch.Tensor], half: Run, again: str) -> None:
        """Look for the module that overflowed, unless a smaller scale may be all that is needed."""
        state, policy = self._state, self.policy
        if math.isfinite(half.loss) and self._scale_may_fall():
            return
        self._search(compute)
        state.strikes = [step for step in state.strikes if step > state.steps - policy.window]
        state.strikes.append(state.steps)
        if math.isfinite(half.loss) and self.scaler.is_enabled():
            self._to_full(f"the loss scale collapsed to {self.scaler.get_scale():g}")
        elif len(state.strikes) >= policy.strikes:
            self._to_full(f"{again}, {len(state.strikes)} times")

    def _scale_may_fall(self) -> bool:
        """Whether a lower scale may repair gradients that overflow."""
        return bool(self.scaler.is_enabled()
                    and self.scaler.get_scale() >= self.policy.least_scale)

    def _search(self, compute: Callable[[], torch.Tensor]) -> None:
        """Run the batch once more to find the module; the next step's message carries its name.

        The gradients of full precision, which are to be applied, are put back; those in tables
        stay there.
        """
        from harp.ttf.embedding.operators import discarding  # few trainings come here
        kept = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        after = Before(self.model, self._device)
        after.keep()
        self._before.restore()
        search = Search(self.model)
        with (search.watching(), discarding(),
              torch.autocast(self._device.type, dtype=self.dtype)):
            self.scaler.scale(call(compute)).backward()
        after.restore()
        for parameter, gradient in zip(self._parameters, kept, strict=True):
            parameter.grad = gradient
        self._votes = [float(name == search.blamed) for name in self._names]

    def _count(self, votes: tuple[float, ...]) -> None:
        """Count the overflow of modules that any rank named, and pin those that have too many."""
        state = self._state
        for name, ranks in zip(self._names, votes, strict=True):
            if ranks and name and name not in state.pinned:
                state.overflows[name] = state.overflows.get(name, 0) + 1
                if state.overflows[name] >= self.policy.pin_after:
                    self._pin(name)
                    state.strikes.clear()
                    self._note(f"module {name} overflowed {state.overflows[name]} times and stays "
                               "in full precision")

    def _pin(self, name: str) -> None:
        pin(dict(modules_by_name(self.model))[name])
        self._state.pinned.append(name)

    def _after_probe_in_full(self, half: Run, *, agrees: bool) -> None:
        state, policy = self._state, self.policy
        state.agreed = state.agreed + 1 if agrees else 0
        if state.agreed >= policy.agreements:
            state.half, state.changed, state.agreed = True, state.steps, 0
            state.spacing = FIRST_PROBE
            state.next_probe = state.steps + state.spacing
            self._note(f"full to half: {policy.agreements} probes agreed")
        elif agrees or (math.isfinite(half.loss) and not math.isfinite(half.norm)
                        and self._scale_may_fall()):
            state.next_probe = state.steps + 1
        else:
            state.hold = min(2 * state.hold, policy.most_hold)
            state.next_probe = state.steps + state.hold

    def _to_full(self, reason: str) -> None:
        state, policy = self._state, self.policy
        if state.switches and state.steps - state.changed < 4 * state.hold:
            state.hold = min(2 * state.hold, policy.most_hold)  # a relapse
        else:
            state.hold = policy.hold
        state.half, state.changed, state.agreed = False, state.steps, 0
        state.next_probe = state.steps + state.hold
        state.strikes.clear()
        if self.scaler.is_enabled():
            self.scaler.update(self._first_scale)
        self._note(f"half to full: {reason}")

    def _note(self, sentence: str) -> None:
        self._state.switches.append((self._state.steps, sentence))
        log.info("step %d: %s", self._state.steps, sentence)

    def state_dict(self) -> dict[str, Any]:
        """Give all that a training needs to go on with the same decisions."""
        return {"scaler": self.scaler.state_dict(), "trend": self._trend.state_dict(),
                "norms": self._norms.state_dict(),
                "votes": list(self._votes), "state": asdict(self._state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; modules that were pinned are pinned again."""
        try:
            kept = _State(**state["state"])
            scaler, trend, norms, votes = (state[name] for name in (
                "scaler", "trend", "norms", "votes"))
        except (KeyError, TypeError):
            raise ValueError("the state is no whole one; allowed is what Controller.state_dict() "
                             "gives") from None
        if missing := [name for name in kept.pinned if name not in self._names]:
            raise ValueError(f"the state pins module {missing[0]!r}, which this model does not "
                             "have")
        self.scaler.load_state_dict(scaler)
        self._trend.load_state_dict(trend)
        self._norms.load_state_dict(norms)
        pinned, kept.pinned = kept.pinned, list(self._state.pinned)
        self._votes, self._state = list(votes), kept
        self._state.switches = [(step, sentence) for step, sentence in kept.switches]
        for name in pinned:
            if name not in kept.pinned:
                self._pin(name)


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether a step calls the model, as that of LBFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty
