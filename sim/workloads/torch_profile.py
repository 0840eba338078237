"""Times of a module's parts, out of a profile that torch's profiler (Kineto) has written as JSON.

The profile must have been taken ``with_stack=True``: then it says when each module ran. Modules are
known by the order of their calls, which a traced step has as well, and must agree in their classes.

- Where kernels ran on a GPU their times count, those of NCCL apart: each belongs to the operator of
  its ``External id``. Where none did, the outermost operators of the CPU count.
- An operator of the forward pass belongs to the innermost module that runs when it begins.
- A node of the backward pass has the ``Sequence number`` of the operator that made it, and belongs
  to that one's module. A node without one (the sum into a gradient) goes with the node before it.
- Operators outside of the module that have a sequence number are those of the loss.

Several steps are averaged; of more than one the first is left out, since it warms up.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from harp.reading import unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MODULE, _NODE = "nn.Module: ", "autograd::engine::evaluate_function"
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_MOST_BYTES = 2 << 30
"""Largest profile, unpacked."""


class ProfileError(ValueError):
    """The profile cannot be used; one clause that says why."""


class Times(NamedTuple):
    """Seconds of a batch."""

    forward_s: float
    backward_s: float


class _Span(NamedTuple):
    start: float
    """In microseconds, as all times here."""
    end: float
    name: str
    thread: Any
    external: Any
    sequence: Any

    def holds(self, other: _Span) -> bool:
        return self.thread == other.thread and self.start <= other.start < self.end


@dataclass(frozen=True)
class Measured:
    """Contents of a profile."""

    times: tuple[Times, ...]
    """Of each call of a module, in the order of calls; of its own operators alone."""
    device: str
    steps: int


def measure(data: bytes, classes: Sequence[str]) -> Measured:
    """Read a profile of steps that call modules of these classes in this order."""
    operators, modules, kernels, device = _read(data)
    roots = _outermost(modules)
    roots = [root for root in roots if root.name == classes[0]]
    if not modules:
        raise ProfileError("names no module; take it with with_stack=True")
    if not roots:
        raise ProfileError(f"has no call of the module {classes[0]}")
    forward: dict[int, float] = defaultdict(float)
    backward: dict[int, float] = defaultdict(float)
    steps = roots[1:] or roots
    calls = [_calls(root, modules, classes) for root in steps]
    ends = [root.start for root in roots[1:]] + [float("inf")]
    windows = list(zip(steps, ends[-len(steps):], strict=True))
    outer = _outermost(operators)
    for (root, end), called in zip(windows, calls, strict=True):
        owners: dict[Any, int] = {}
        before = 0
        inside = [each for each in operators if root.start <= each.start < end]
        for each in inside:  # an operator inside another has that one's module
            if each.sequence is not None and not each.name.startswith(_NODE):
                owners.setdefault(each.sequence, _innermost(called, each))
        for each in (each for each in outer if root.start <= each.start < end):
            spent = kernels(each) if kernels is not None else each.end - each.start
            if each.name.startswith(_NODE):
                before = owners.get(each.sequence, before)
                backward[before] += spent
            elif root.holds(each) or each.sequence is not None:
                forward[_innermost(called, each)] += spent
    each_s = 1e-6 / len(steps)
    return Measured(tuple(Times(forward[number] * each_s, backward[number] * each_s)
                          for number in range(len(classes))), device, len(steps))


class _Kernels:
    """Time on the GPU of an operator, with those inside it."""

    def __init__(self, spans: Sequence[tuple[Any, float]], operators: Sequence[_Span]) -> None:
        spent: dict[Any, float] = defaultdict(float)
        for external, microseconds in spans:
            spent[external] += microseconds
        self._by_thread: dict[Any, tuple[list[float], list[float]]] = {}
        for each in sorted(operators, key=_times):
            starts, totals = self._by_thread.setdefault(each.thread, ([], [0.0]))
            starts.append(each.start)
            totals.append(totals[-1] + spent.get(each.external, 0.0))

    def __call__(self, operator: _Span) -> float:
        starts, totals = self._by_thread[operator.thread]
        first = bisect_right(starts, operator.start - 1e-9)
        return totals[bisect_right(starts, operator.end)] - totals[first]


def _read(data: bytes) -> tuple[list[_Span], list[_Span], _Kernels | None, str]:
    try:
        return _sorted_out(json.loads(unpacked(data, _MOST_BYTES))["traceEvents"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError,
            RecursionError):
        raise ProfileError("is no trace of torch's profiler") from None


def _sorted_out(events: list[dict[str, Any]]) -> tuple[list[_Span], list[_Span],
                                                      _Kernels | None, str]:
    operators, modules, kernels = [], [], []
    for event in events:
        if event.get("ph") != "X":
            continue
        kind, name, given = event.get("cat"), str(event["name"]), event.get("args", {})
        start, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
        if not math.isfinite(end - start):
            raise ValueError(f"{name} lasts from {start} to {end}")
        span = _Span(start, end, name, *map(_number, (
            event["tid"], given.get("External id"), given.get("Sequence number"))))
        if kind == "cpu_op":
            operators.append(span)
        elif kind == "python_function" and name.startswith(_MODULE):
            modules.append(span._replace(name=name[len(_MODULE):].rpartition("_")[0]))
        elif kind in _ON_GPU and not name.startswith("nccl"):
            kernels.append((span.external, span.end - span.start))
    on_gpu = _Kernels(kernels, operators) if kernels else None
    return (sorted(operators, key=_times), sorted(modules, key=_times), on_gpu,
            "GPU" if kernels else "CPU")


def _number(value: Any) -> Any:
    """Of a thread, an operator, or an order: a number, a text, or nothing."""
    if not isinstance(value, int | str | None):
        raise TypeError(f"{value} is no number")
    return value


def _times(span: _Span) -> tuple[float, float]:
    return span.start, span.end


def _outermost(spans: Sequence[_Span]) -> list[_Span]:
    """Spans that lie in no other one of their thread."""
    def found() -> Iterator[_Span]:
        until: dict[Any, float] = {}
        for span in sorted(spans, key=lambda each: (each.start, -each.end)):
            if span.start >= until.get(span.thread, float("-inf")):
                until[span.thread] = span.end
                yield span
    return list(found())


def _calls(root: _Span, modules: Sequence[_Span], classes: Sequence[str]) -> list[_Span]:
    """Calls of modules in a step, in order; they must be those of the traced one."""
    found = sorted((each for each in modules if root.holds(each) and each.end <= root.end),
                   key=lambda each: (each.start, -each.end))
    for number, (given, wanted) in enumerate(zip(found, classes, strict=False), 1):
        if given.name != wanted:
            raise ProfileError(f"calls a {given.name} where the module calls a {wanted} "
                               f"(call {number} of a step)")
    if len(found) != len(classes):
        raise ProfileError(f"has {len(found)} calls of modules a step, and the module makes "
                           f"{len(classes)}")
    return found


def _innermost(called: Sequence[_Span], operator: _Span) -> int:
    """The call that an operator belongs to; the first, the whole module, where none holds it."""
    last = bisect_right([each.start for each in called], operator.start) - 1
    while last > 0 and not called[last].holds(operator):
        last -= 1
    return max(last, 0)
