"""Parameter sets: costs of a host stack or a training framework, each figure with its source.

A shipped set is a file, ``sim/stacks/<name>.yaml`` or ``sim/frameworks/<name>.yaml``::

    description: Linux TCP, one NCCL socket per channel
    base: another-set                 # optional: what is not given here comes from there
    cost_per_byte: {value: 0.5ns, low: 0.4ns, high: 0.7ns, confidence: fitted, source: ...}

A topology file overrides a set under ``stacks:`` or ``frameworks:``, where a figure may also stand
alone (``cost_per_byte: 0.5ns``): its confidence is then "assumed" and its source the topology file.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field, ValidationInfo, model_validator

from sim.schema.base import Line, Model
from sim.schema.input_errors import Problem, TopologyError, show, unknown
from sim.schema.source import Source
from sim.schema.units import Bytes, Rate, Seconds, Share

Confidence = Literal["measured", "published", "fitted", "assumed"]
Kind = Literal["stacks", "frameworks"]
Value = TypeVar("Value", bound=float)
AnySet = TypeVar("AnySet", "StackSet", "FrameworkSet")
SETS = Path(__file__).resolve().parent.parent
_WORD = {"stacks": "stack", "frameworks": "framework"}
PLAIN_VALUES = {"plain_values": True}
"""Validation context of a topology file, where a figure may stand without its source."""

CoreCount = Annotated[float, Field(ge=1e-3, le=4096, strict=True, title="core count")]
"""Cores, not necessarily a whole number of them."""
Factor = Annotated[float, Field(ge=0, le=1000, strict=True, title="factor")]
"""A plain number."""
PositiveFactor = Annotated[float, Field(ge=1e-3, le=1000, strict=True, title="positive factor")]
"""A plain number above 0."""


class Parameter(Model, Generic[Value]):
    """A figure, the interval in which it may lie, and where it comes from."""

    value: Value
    """The figure."""
    low: Value | None = None
    """Lower end of its interval; the value itself where none is known."""
    high: Value | None = None
    """Upper end of its interval."""
    confidence: Confidence
    """How far to trust it: measured here, published by others, fitted to a table, or assumed."""
    source: Annotated[Line, Field(min_length=1)]
    """Publication or measurement behind it, or the data that it was fitted to."""

    @model_validator(mode="before")
    @classmethod
    def _plain_value(cls, data: Any, info: ValidationInfo) -> Any:
        if isinstance(data, dict | Parameter):
            return data
        if not (info.context or {}).get("plain_values"):
            raise Problem(f"{show(data)} has no source", found=data,
                          allowed="a mapping with value, confidence and source")
        return {"value": data, "confidence": "assumed", "source": "the topology file"}

    @model_validator(mode="after")
    def _ordered(self) -> "Parameter[Value]":
        if not self.interval[0] <= self.value <= self.interval[1]:
            raise Problem("the interval does not hold the value", path=("low",),
                          allowed="low <= value <= high")
        return self

    @property
    def interval(self) -> tuple[Value, Value]:
        """(low, high); both are the value where no interval is known."""
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        return low, high

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """Name the class after its quantity, e.g. RateParameter."""
        kind = params[0].__metadata__[0]
        words = getattr(kind, "name", None) or kind.title
        return "".join(map(str.capitalize, words.split())) + "Parameter"


TimeParameter = Parameter[Seconds]
RateParameter = Parameter[Rate]
SizeParameter = Parameter[Bytes]
ShareParameter = Parameter[Share]
CoreCountParameter = Parameter[CoreCount]
FactorParameter = Parameter[Factor]
PositiveFactorParameter = Parameter[PositiveFactor]
"""The classes by the names that `Parameter` gives them, so that pickle finds them."""


class StackSet(Model):
    """A host stack's parameters, as far as they differ from those of ``base``."""

    base: str | None = None
    """The set that supplies what is not given here."""
    description: str = ""
    """The stack in a sentence."""
    cost_per_byte: TimeParameter | None = None
    """CPU seconds per byte on one core."""
    cost_per_packet: TimeParameter | None = None
    """CPU seconds per packet."""
    cost_per_message: TimeParameter | None = None
    """Seconds per message (one transfer of a collective's step)."""
    start_latency: TimeParameter | None = None
    """Seconds one way per message, both hosts together, before its first byte counts."""
    flow_rate: RateParameter | None = None
    """Ceiling of one flow or socket, whatever moves its bytes."""
    threads: CoreCountParameter | None = None
    """Threads of a process that move the bytes of all its connections, each at most a core."""
    memory_per_byte: FactorParameter | None = None
    """Bytes that pass the memory of a host for each byte that it sends or receives."""
    cores: CoreCountParameter | None = None
    """Cores of a host that all its processes together get for the stack; where not given, all."""
    headers: SizeParameter | None = None
    """Bytes per packet on the wire beyond the payload, layers 2 to 4."""
    deviation: PositiveFactorParameter | None = None
    """Factor on the time of everything between hosts: the difference between clusters that no other
    figure explains; 1 where not given."""
    launch: TimeParameter | None = None
    """Seconds that a collective takes beside its messages where it runs alone, for the launch and
    the end of its kernel; none where not given. In a training step it is hidden."""


class FrameworkSet(Model):
    """A training framework's parameters, as far as they differ from those of ``base``."""

    base: str | None = None
    """The set that supplies what is not given here."""
    description: str = ""
    """The framework in a sentence."""
    per_tensor: TimeParameter | None = None
    """Seconds of serial coordination per collective launched."""
    per_rank: TimeParameter | None = None
    """Seconds that this coordination takes besides for each rank."""
    step_overhead: TimeParameter | None = None
    """Seconds per step whenever more than one GPU takes part."""
    overlap: ShareParameter | None = None
    """Share of the backward pass in which communication can run."""
    slowdown: FactorParameter | None = None
    """Time of the backward pass while a collective runs beside it, over its time alone."""
    jitter: ShareParameter | None = None
    """Standard deviation of a rank's compute time; a step waits for the slowest rank."""
    contention: ShareParameter | None = None
    """Share of time that compute takes longer where several GPUs of a host train; where not given,
    none."""
    selection_per_element: TimeParameter | None = None
    """GPU seconds per gradient element that top-k examines."""
    scatter_per_element: TimeParameter | None = None
    """GPU seconds per received element of top-k that is added to the gradients."""
    cast_per_element: TimeParameter | None = None
    """GPU seconds per element for a cast between fp32 and fp16."""
    copy_per_element: TimeParameter | None = None
    """Seconds of the backward pass per gradient element that is laid into its bucket and taken out
    again; where not given, none."""
    kernel_delay: ShareParameter | None = None
    """Share of the time of a collective's own kernels (selection, casts) that delays the backward
    pass; where not given, all of it, as on one GPU."""
    launch_per_layer: TimeParameter | None = None
    """Seconds of the host for the kernels of a layer in either pass, which the GPU waits for where
    its work is shorter; none where not given, as with CUDA graphs."""
    launch_per_product: TimeParameter | None = None
    """The same of a matrix product of one expert."""


class HostStack(Model):
    """A complete host stack; the fields are those of `StackSet`."""

    name: str
    description: str
    cost_per_byte: TimeParameter
    cost_per_packet: TimeParameter
    cost_per_message: TimeParameter
    start_latency: TimeParameter
    flow_rate: RateParameter
    threads: CoreCountParameter
    memory_per_byte: FactorParameter
    cores: CoreCountParameter | None = None
    headers: SizeParameter
    deviation: PositiveFactorParameter | None = None
    launch: TimeParameter | None = None


class FrameworkCosts(Model):
    """A complete set of framework costs; the fields are those of `FrameworkSet`."""

    name: str
    description: str
    per_tensor: TimeParameter
    per_rank: TimeParameter
    step_overhead: TimeParameter
    overlap: ShareParameter
    slowdown: FactorParameter
    jitter: ShareParameter
    contention: ShareParameter | None = None
    selection_per_element: TimeParameter
    scatter_per_element: TimeParameter
    cast_per_element: TimeParameter
    copy_per_element: TimeParameter | None = None
    kernel_delay: ShareParameter | None = None
    launch_per_layer: TimeParameter | None = None
    launch_per_product: TimeParameter | None = None


@cache
def shipped(kind: Kind) -> tuple[str, ...]:
    """Names of the sets that are shipped, in alphabetical order."""
    return tuple(sorted(path.stem for path in (SETS / kind).glob("*.yaml")))


def load_stack(name: str, overrides: Mapping[str, StackSet] | None = None) -> HostStack:
    """Host stack ``name``, from ``overrides`` (``topology.stacks``) or a shipped file.

    Raises TopologyError where the name, a base or a parameter is missing.
    """
    return HostStack.model_validate(_resolve(name, overrides or {}, "stacks", StackSet))


def load_framework(name: str,
                   overrides: Mapping[str, FrameworkSet] | None = None) -> FrameworkCosts:
    """Framework costs ``name``, from ``overrides`` (``topology.frameworks``) or a shipped file.

    Raises TopologyError where the name, a base or a parameter is missing.
    """
    return FrameworkCosts.model_validate(
        _resolve(name, overrides or {}, "frameworks", FrameworkSet))


def load_set(path: Path, model: type[AnySet]) -> AnySet:
    """One parameter file; raises TopologyError. Every figure in it must name its source."""
    source = Source.read(path)
    return source.validate(model)


def resolve(name: str, overrides: Mapping[str, AnySet], kind: Kind,
            model: type[AnySet]) -> dict[str, Any]:
    """All that set ``name`` and its bases give, nearest first; raises Problem.

    A set that overrides a shipped one of the same name may name it as its base.
    """
    merged: dict[str, Any] = {}
    seen: list[str] = []
    wanted: str | None = name
    while wanted is not None:
        shadowed = bool(seen) and seen[-1] == wanted and wanted in overrides
        if wanted in seen and not (shadowed and seen.count(wanted) == 1):
            raise Problem(f"base leads in a circle: {' -> '.join([*seen, wanted])}",
                          path=(kind, seen[-1], "base"), found=wanted,
                          allowed="a chain that ends in a set without base")
        current = _one(wanted, {} if shadowed else overrides, kind, model,
                       (kind, seen[-1], "base") if seen else ())
        given = {key: getattr(current, key) for key in current.model_fields_set - {"base"}}
        merged = given | merged
        seen.append(wanted)
        wanted = current.base
    missing = [key for key in model.model_fields if key not in merged and key not in _OPTIONAL]
    if missing:
        raise Problem(f"lacks {', '.join(missing)}", path=(kind, name),
                      allowed="all parameters, or a base that has them")
    return {"description": ""} | merged | {"name": name}


def givers(name: str, overrides: Mapping[str, AnySet], kind: Kind,
           model: type[AnySet]) -> dict[str, tuple[str, ...]]:
    """For each parameter of set ``name`` the sets that it could come from, nearest first.

    They end with the one that gives it; ``resolve`` has accepted the set before.
    """
    found: dict[str, tuple[str, ...]] = {}
    names: list[str] = []
    wanted: str | None = name
    while wanted is not None:
        shadowed = wanted in names
        names.append(wanted)
        current = _one(wanted, {} if shadowed else overrides, kind, model, ())
        for parameter in model.model_fields:
            if getattr(current, parameter) is not None:
                found.setdefault(parameter, tuple(names))
        wanted = current.base
    return found


def derives_from(name: str, ancestor: str, overrides: Mapping[str, AnySet], kind: Kind,
                 model: type[AnySet]) -> bool:
    """Whether set ``name`` is ``ancestor`` or has it among its bases."""
    seen: list[str] = []
    wanted: str | None = name
    while wanted is not None and wanted != ancestor:
        shadowed = wanted in seen
        seen.append(wanted)
        wanted = _one(wanted, {} if shadowed else overrides, kind, model, ()).base
    return wanted is not None


_OPTIONAL = ("base", "description", "cores", "deviation", "launch", "contention",
             "copy_per_element", "kernel_delay",
             "launch_per_layer", "launch_per_product")


def _one(name: str, overrides: Mapping[str, AnySet], kind: Kind, model: type[AnySet],
         path: tuple[str, ...]) -> AnySet:
    if name in overrides:
        return overrides[name]
    names: tuple[str, ...] = shipped(kind)
    if name not in names:
        raise unknown(_WORD[kind], name, [*names, *overrides], path)
    found: AnySet = _shipped(kind, name, model)
    return found


@cache
def _shipped(kind: Kind, name: str, model: type[AnySet]) -> AnySet:
    """A shipped set, read once, since every simulation needs it."""
    return load_set(SETS / kind / f"{name}.yaml", model)


def _resolve(name: str, overrides: Mapping[str, AnySet], kind: Kind,
             model: type[AnySet]) -> dict[str, Any]:
    try:
        return resolve(name, overrides, kind, model)
    except Problem as problem:
        raise TopologyError("the parameter sets", problem) from None
