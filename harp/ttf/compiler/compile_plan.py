"""The life of calls of one key: they run eagerly, are learned from, and run compiled.

Calls run eagerly, and their sizes are counted, until they took as long as a compilation takes at
least (`harp.ttf.compiler.break_even`). Then a thread copies the module and tries: a variant with a
dynamic dimension, and one with static sizes. Buckets are chosen if, over the calls to come, padding
and compilation cost less than the dynamic variant does, by these measurements, and if padded
results and gradients are those of eager. Calls run eagerly until their variant is there.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from harp.ttf.compiler import buckets
from harp.ttf.compiler.break_even import LEAST_S, OF_A_MODULES_PARAMETER_S
from harp.ttf.compiler.calls import Call, grown, linked, sliced
from harp.ttf.compiler.decisions import Decision, fingerprint
from harp.ttf.compiler.variants import (
    Changes,
    Variant,
    called,
    gradients_too,
    in_tensors,
    in_turn,
    numbers,
    seconds_of,
    stays_eager,
    tensors_for,
    trial,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from harp.ttf.compiler.compiled import Settings

log = logging.getLogger(__name__)

TOLERANCE = 1e-4
"""Of padded results against eager ones, by their norm: float32 sums in another order."""
MOST_SAMPLES = 3
DYNAMIC, EAGER = "a dynamic dimension", "eager"
BUCKET_SHARE = 0.25
"""Least time to compile a static graph, of that for any size: a quarter and more, as measured."""


class Plan:
    """Knowledge of calls of one key, and how they run."""

    def __init__(self, module: nn.Module, key: str, call: Call, settings: Settings) -> None:
        self._module, self._settings = module, settings
        self._name = fingerprint(module.state_dict(), type(module).__qualname__, str(module), key)
        self._grad = torch.is_grad_enabled()
        self._autocast = call.autocast
        self._dimensions = tuple(call.sizes)
        self._shapes: Counter[tuple[int, ...]] = Counter()
        self._samples: dict[tuple[int, ...], Call] = {}
        self._holders = [vars(each) for each in module.modules()]
        self._changes = Changes(numbers(self._holders))
        self._first_floats = call.floats
        self._changing_floats: set[int] = set()
        least_s = LEAST_S + OF_A_MODULES_PARAMETER_S * len(list(module.parameters()))
        self._eager_s = 0.0
        self._enough_s = least_s if settings.after_s is None else settings.after_s
        self._variants: dict[int, Variant] = {}
        self._any: Variant | None = None
        self._thread: threading.Thread | None = None
        self.decision: Decision | None = None

    def run(self, call: Call) -> Any:
        """Run a call, compiled if that is ready."""
        variant, size = self._variant_for(call)
        if variant is None:
            return self._run_eagerly(call)
        assert self.decision is not None
        if variant.unsaved:  # by now its backward pass was compiled, too
            variant.unsaved = False
            self._settings.kept.add(self._name, self.decision)
        return self._run_in(variant, self._module, call, size, self.decision)

    def _run_eagerly(self, call: Call) -> Any:
        args, kwargs = call.arguments()
        if self._thread is not None:
            return self._module(*args, **kwargs)
        self._learn(call)
        begin = time.perf_counter()
        result = self._module(*args, **kwargs)
        self._eager_s += time.perf_counter() - begin
        self._changes.look(numbers(self._holders))
        if self._is_time():
            self._begin()
            if not self._settings.aside:
                self.wait()
        return result

    def _run_in(self, variant: Any, module: Any, call: Call, bucket: int,
                decision: Decision) -> Any:
        """Run a call in a variant; bucket 0 has no padding."""
        size = self._size(call, decision) if bucket else 0
        if bucket:
            call = call.padded(decision.dimensions, bucket)
        args, kwargs = call.lifted(decision.floats).arguments()
        if bucket and self._settings.mask:
            device = call.leaves[decision.dimensions[0][0]].device
            kwargs = {**kwargs, self._settings.mask: torch.arange(bucket, device=device) < size}
        holders = [vars(each) for each in module.modules()] if decision.counters else []
        with in_tensors(holders, tensors_for(holders, decision.counters)):
            result = variant(module, args, kwargs)
        return sliced(result, decision.results, size) if bucket and size != bucket else result

    @staticmethod
    def _size(call: Call, decision: Decision) -> int:
        leaf, dimension = decision.dimensions[0]
        return int(call.leaves[leaf].shape[dimension])

    def _variant_for(self, call: Call) -> tuple[Variant | None, int]:
        decision = self.decision
        if decision is None:
            return None, 0
        if decision.buckets:
            size = self._size(call, decision)
            for bucket in decision.buckets:
                if bucket >= size and bucket in self._variants and self._variants[bucket].ready:
                    return self._variants[bucket], bucket
        if self._any is not None and self._any.ready:
            return self._any, 0
        return None, 0

    def _learn(self, call: Call) -> None:
        shape = tuple(call.sizes.values())
        self._shapes[shape] += 1
        self._changing_floats |= {leaf for leaf, value in call.floats.items()
                                  if value != self._first_floats[leaf]}
        if shape not in self._samples and len(self._samples) < MOST_SAMPLES:
            self._samples[shape] = call.copied()

    def _is_time(self) -> bool:
        if self._settings.kept.get(self._name) is not None:
            return True
        return self._has_learned() and (self._eager_s >= self._enough_s or not self._settings.aside)

    def _has_learned(self) -> bool:
        return self._shapes.total() >= self._settings.learn

    def _begin(self) -> None:
        # The process ends when it is through: a compiler that is cut off midway may crash.
        self._thread = threading.Thread(target=self._in_background, name="harp.ttf.compile",
                                        args=(self._settings.kept.get(self._name),))
        self._thread.start()

    def wait(self) -> None:
        """Compile now what calls were learned from, and wait for it."""
        if self._thread is None and self._has_learned():
            self._begin()
        if self._thread is not None:
            self._thread.join()

    def _in_background(self, known: Decision | None) -> None:
        """Decide and compile, on a copy, under the modes of the calls."""
        device, dtype, on = self._autocast
        try:
            known = known or self._settings.kept.from_first_rank(self._name)
            with torch.set_grad_enabled(self._grad), torch.autocast(device, dtype, enabled=on), \
                    in_turn(), trial(self._module) as module:
                decision = known or self._decide(module)
                self._compile(module, decision)
                if known is None:
                    self._settings.kept.add(self._name, decision)
            log.info("%s: %s", type(self._module).__name__, decision.why)
        except Exception as error:
            stays_eager(self._module, error)

    # Everything below runs in the thread.

    def _variant(self, name: str, *, dynamic: bool) -> Variant:
        return Variant(name, self._settings.backend, dynamic=dynamic,
                       optimize=self._settings.passes)

    def _parameters(self, module: Any) -> list[torch.Tensor]:
        return [value for value in module.parameters() if value.requires_grad] if self._grad else []

    def _warm(self, variant: Any, module: Any, call: Call, bucket: int,
              decision: Decision) -> float:
        """Compile a variant for a call, both passes, and give the seconds of one."""
        def run() -> None:
            result = self._run_in(variant, module, call, bucket, decision)
            gradients_too(result, self._parameters(module))
        run()
        return seconds_of(run)

    def _decide(self, module: nn.Module) -> Decision:
        groups = linked([dict(zip(self._dimensions, shape, strict=True))
                         for shape in self._shapes])
        plain = Decision(floats=tuple(sorted(self._changing_floats)),
                         counters=tuple(sorted(self._changes.places)))
        if not groups:
            return replace(plain, why="one static graph: no size varies")
        varies = replace(plain, varies=True)
        # Sizes 0 and 1 are constants in torch: another size tells more of the first graph.
        samples = sorted(self._samples.values(), key=lambda call: (
            min(call.sizes.values(), default=0) < 2, tuple(call.sizes.values())))
        begin = time.perf_counter()
        times = self._time_any(module, samples, varies)
        compile_s = time.perf_counter() - begin
        if times:
            self.decision = varies  # used at once; buckets may replace it
        else:
            varies = replace(varies, eager=True)
            times = [self._warm(called, module, call, 0, varies) for call in samples]
        order = sorted(range(len(samples)), key=lambda at: tuple(samples[at].sizes.values()))
        samples, times = [samples[at] for at in order], [times[at] for at in order]
        other = EAGER if varies.eager else DYNAMIC
        tables = any(hasattr(part, "uncopied") for part in module.modules())
        if len(groups) > 1 or tables:
            why = ("several sizes vary by themselves" if len(groups) > 1 else
                   "padding would be ids of dynamic embeddings")
            return replace(varies, why=f"{other}: {why}")
        return self._weigh(module, replace(varies, dimensions=groups[0]), samples, times,
                           compile_s, other)

    def _time_any(self, module: nn.Module, samples: list[Call], varies: Decision) -> list[float]:
        """Compile a graph for any size; none, if torch took the first call's sizes for constants.

        Convolutions that are trained on a CPU do so, in torch 2.13: inductor asks whether strides
        are those of channels last, and each answer is a guard on the sizes.
        """
        variant, times = self._variant("any_size", dynamic=True), []
        for call in samples:
            known = variant.graphs
            times.append(self._warm(variant, module, call, 0, varies))
            if known and variant.graphs > known and variant.bound_to_sizes():
                return []
        variant.settle()
        self._any = variant
        return times

    def _weigh(self, module: nn.Module, varies: Decision, samples: Sequence[Call],
               times: Sequence[float], compile_s: float, other: str) -> Decision:
        """Hold the best buckets against what there is without them."""
        place = self._dimensions.index(varies.dimensions[0])
        sizes: Counter[int] = Counter()
        for shape, calls_n in self._shapes.items():
            sizes[shape[place]] += calls_n
        largest = max(sizes)
        padded = replace(varies, buckets=(largest,))
        small, large = samples[0], samples[-1]
        near, far = (self._size(call, padded) for call in (small, large))
        slope = max(0.0, (times[-1] - times[0]) / max(1, far - near))

        def dynamic_of(size: int) -> float:
            return max(min(times), times[0] + slope * (size - near))

        horizon = max(self._settings.horizon, sizes.total())
        scale = horizon / sizes.total()
        calls = {size: count * scale for size, count in sizes.items()}
        dynamic = sum(count * dynamic_of(size) for size, count in calls.items())
        if dynamic < BUCKET_SHARE * compile_s:
            return replace(varies, dimensions=(), why=(
                f"{other}: {horizon} calls take {dynamic:.2f} s, less than it takes to compile a "
                "bucket"))
        results, why = self._padded_right(module, small, padded)
        if why:
            return replace(varies, dimensions=(), why=f"{other}: {why}")
        padded = replace(padded, results=tuple(results))
        first = self._variant(f"size_{largest}", dynamic=False)
        begin = time.perf_counter()
        static = self._warm(first, module, large, largest, padded)
        compile_s = time.perf_counter() - begin
        first.settle()
        self._variants[largest] = first
        ratio = static / dynamic_of(largest)
        ends, cost = buckets.choose(calls, lambda size: ratio * dynamic_of(size), compile_s)
        totals = (f"over {horizon} calls {len(ends)} buckets cost {cost:.2f} s, "
                  f"{other} {dynamic:.2f} s")
        if cost >= dynamic:
            self._variants.clear()
            return replace(varies, dimensions=(), why=f"{other}: {totals}")
        return replace(padded, buckets=ends, eager=False,
                       why=f"buckets {', '.join(map(str, ends))}: {totals}")

    def _padded_right(self, module: Any, call: Call, decision: Decision) -> tuple[list[Any], str]:
        """Compare a padded call with the same unpadded, in eager: results and gradients."""
        size, bucket = self._size(call, decision), decision.buckets[0]

        def run(size: int, cut: Decision) -> tuple[Any, list[Any]]:
            fresh = copy.deepcopy(module)  # its counters and statistics have not moved on
            result = self._run_in(called, fresh, call, size, cut)
            return result, gradients_too(result, self._parameters(fresh))

        whole, right = run(0, decision)
        results = grown(whole, run(bucket, decision)[0], (size, bucket))
        found, ours = run(bucket, replace(decision, results=tuple(results)))
        pairs = zip([*pytree.tree_leaves(found), *ours], [*pytree.tree_leaves(whole), *right],
                    strict=True)
        if all(_near(one, other) for one, other in pairs if torch.is_tensor(other)):
            return results, ""
        return [], "padding changes results" + ("" if self._settings.mask else
                                                ", and there is no mask")

    def _compile(self, module: Any, decision: Decision) -> None:
        """Compile what a decision needs and does not have; the most used first."""
        varies = decision.varies
        if not varies or not (self._any or decision.buckets or decision.eager):
            self._any = self._variant("any_size" if varies else "one_size", dynamic=varies)
            self._warm(self._any, module, next(iter(self._samples.values())), 0, decision)
            self._any.settle()
        self.decision = decision
        for bucket in decision.buckets:
            if bucket in self._variants:
                continue
            variant = self._variant(f"size_{bucket}", dynamic=False)
            call = min(self._samples.values(), key=lambda each: self._size(each, decision))
            if self._size(call, decision) > bucket:
                call = call.padded(decision.dimensions, bucket)
            self._warm(variant, module, call, bucket, decision)
            variant.settle()
            self._variants[bucket] = variant


def _near(one: Any, other: torch.Tensor) -> bool:
    if one is None or one.shape != other.shape:
        return False
    if not other.is_floating_point():
        return bool(torch.equal(one, other))
    far, size = float((one - other).detach().norm()), float(other.detach().norm())
    return far <= TOLERANCE * max(size, 1e-6)
