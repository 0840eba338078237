"""Chakra execution traces out of what PyTorch's profiler writes of a rank: two JSON files.

``ExecutionTraceObserver`` (schema ``1.*-chakra.*``) knows operators, their tensors and groups, but
no times; Kineto's trace (``export_chrome_trace``) knows times. ``rf_id`` there is ``Record function
id`` here. The result has:

- *CPU nodes*: the time of each thread, cut where an operator or a call of CUDA begins or ends, so
  that each piece belongs to the innermost one. A piece waits for the one before it in its thread;
  after a pause it also waits for the last piece of another thread that was over by then (autograd's
  thread for ``backward()`` and back). Between operators the main thread is in Python, unless
  another thread is at work.
- *GPU nodes*: kernels and copies. Each waits for the call that launched it, for the one before it
  on its stream, and for collectives that wrote what its operator reads (PyTorch makes the stream
  wait there).
- *Collectives*: ``record_param_comms`` (NCCL), else ``c10d::`` (gloo and others). Each waits for
  the call. On a GPU it also waits for the last kernel that was launched before it (ProcessGroupNCCL
  waits for the current stream) and for its group's collective before it (they share a stream).

Waiting is not work: a call ``cuda...Synchronize`` takes no time and waits for the kernels before
it; an operator waits for collectives of the CPU that have its tensors, and a pause of the main
thread in which one ends is taken to be the wait for it and counts from its end on. Collectives keep
their recorded time for readers that replay it.

The rules about streams are ProcessGroupNCCL's (torch 2.13, ProcessGroupNCCL.cpp: ``syncStream``,
``Work::wait``), those of pauses are a guess, as mlcommons' ``chakra_trace_link`` makes one.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harp import reading
from sim.schema.input_errors import Problem, TopologyError, listing, show
from sim.schema.json_text import parse_json
from sim.schema.source import read_input
from sim.traces.chakra_format import (
    COLL,
    COLLECTIVES,
    COMP,
    METADATA,
    RECV,
    SEND,
    Attribute,
    Metadata,
    Node,
    Values,
)
from sim.traces.flight_recorder import groups_of_calls
from sim.traces.job_trace import MOST_RANKS, named_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MOST_BYTES = 1 << 31
VERSION = "0.0.4"
SCHEMA = re.compile(r"1\.\d+\.\d+-chakra\.")
CALLS = ("cuda_runtime", "cuda_driver")
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
HOST = ("cpu_op", "user_annotation", *CALLS)
OF_CPU = re.compile(r"(?:gloo|mpi|ucc):(.+)")
"""Annotations of backends that do not record ``record_param_comms``."""
ASKED = re.compile(r"c10d::(.+)")
FUNCTIONAL = "_c10d_functional::"
INTO = ("allgather", "reducescatter", "alltoall", "gather", "scatter")
"""Operators of ``c10d::`` whose first argument is what comes out, and whose second goes in."""
KINDS = {"allreduce": "all-reduce", "allgather": "all-gather", "reducescatter": "reduce-scatter",
         "alltoall": "all-to-all", "broadcast": "broadcast", "reduce": "reduce",
         "barrier": "barrier", "gather": "gather", "scatter": "scatter", "send": "send",
         "recv": "recv"}
"""Collectives by the beginning of their names, without underscores; the longer ones first."""
MESSAGES = ("send", "recv")
NONE = ("wait", "init", "coalesced", "startcoalescing", "endcoalescing")
"""Records of ``record_param_comms`` that send nothing."""
LEAST_SHARED = 0.5
"""Share of the operators that must be in both files."""
MOST_ID = (1 << 64) - 1
MOST_TAG = (1 << 31) - 1
MOST_US = 1e17
"""Longest time since a clock's beginning, some thousand years."""
MOST_CALL = 1 << 62
"""Bytes of a call."""


class Event(NamedTuple):
    """A span of Kineto's trace, in microseconds since the first one."""

    start: float
    end: float
    name: str
    kind: str
    thread: Any
    function: int | None
    external: int | None
    correlation: int | None
    stream: Any


class Piece(NamedTuple):
    """A piece of a thread's time, and the innermost event that it belongs to (None: Python)."""

    start: float
    end: float
    event: Event | None


@dataclass
class Operator:
    """The observer's record of an operator."""

    number: int
    parent: int
    name: str
    inputs: Any
    outputs: Any
    attributes: Mapping[str, Any]


@dataclass
class _Made:
    """Nodes of a rank so far, and where later ones find those that they wait for."""

    nodes: list[Node] = field(default_factory=list)

    def add(self, name: str, kind: int, start: float, end: float, after: Iterable[int | None],
            attributes: tuple[Attribute, ...]) -> int:
        parents = tuple(sorted({one for one in after if one is not None}))
        self.nodes.append(Node(
            len(self.nodes) + 1, name, kind, data_deps=parents, start_us=round(start),
            duration_us=round(end) - round(start), attributes=attributes))
        return len(self.nodes)


def convert(observed: Path, kineto: Path,
            flight: Path | None = None) -> tuple[Metadata, list[Node]]:
    """The Chakra trace of a rank; raises TopologyError.

    ``flight`` is the file of the flight recorder, which names the groups of gloo's collectives.
    """
    with _naming(observed):
        operators = _operators(_json(observed))
        groups = _groups(operators)
    with _naming(kineto):
        document = _json(kineto)
        first_us, events = _events(document)
        both = {event.function for event in events} & set(operators)
        if sum(event.function in operators for event in events) < LEAST_SHARED * len(operators):
            raise Problem(f"{len(both)} of the {len(operators)} operators of {observed} are in it",
                          allowed="the trace of the same steps of the same rank")
        zero_ns = 0 if flight is None else _base_ns(document) + round(1000 * first_us)
    noted: dict[int, str] = {}
    if flight is not None:
        with _naming(flight):
            noted = groups_of_calls(_json(flight), groups, zero_ns, (
                (event.function, event.start, event.end) for event in events
                if event.function and ASKED.fullmatch(event.name)
                and _kind(event.name.removeprefix("c10d::")) not in MESSAGES))
    with _naming(observed):
        named = _GroupsOfCalls(operators, groups, noted)
        calls = {number: call for number in both
                 if number and (call := _call(operators[number], named))}
        return Metadata(VERSION), _Rank(operators, calls, groups, events).nodes()


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Turn what is wrong with a file into a TopologyError that names it."""
    try:
        yield
    except Problem as problem:
        raise TopologyError(str(file), problem) from None
    except RecursionError:
        raise TopologyError(str(file), Problem("is nested too deeply")) from None


def files_of_ranks(*patterns: str) -> list[list[Path]]:
    """The files of each rank, by names in which ``*`` is the rank; raises TopologyError."""
    found = [_by_rank(pattern) for pattern in patterns]
    ranks = range(max(1, *map(len, found)))
    for rank in ranks:
        for pattern, files in zip(patterns, found, strict=True):
            if rank not in files:
                raise TopologyError(pattern, Problem(
                    f"there is no file {pattern.replace('*', str(rank))}",
                    allowed="a file for each rank from 0 on"))
    return [[files[rank] for files in found] for rank in ranks]


def _by_rank(pattern: str) -> dict[int, Path]:
    path = Path(pattern)
    if path.name.count("*") != 1:
        raise TopologyError(pattern, Problem("has no place for the rank in its name", allowed="one "
                                             "*, in quotes, as in 'et.*.json'"))
    before, after = map(re.escape, path.name.split("*"))
    names = path.parent.iterdir() if path.parent.is_dir() else ()
    return {int(match[1]): file for file in names
            if (match := re.fullmatch(rf"{before}(\d+){after}", file.name))}


# ---- reading

def _json(path: Path) -> dict[str, Any]:
    data = read_input(path, most_bytes=MOST_BYTES, allowed="a JSON file of PyTorch's profiler")
    try:
        found = parse_json(reading.unpacked(data, MOST_BYTES), str(path), foreign=True)
    except reading.FileError as error:
        raise Problem(str(error)) from None
    if not isinstance(found, dict):
        raise Problem("is no trace of PyTorch's", allowed="a JSON object")
    return found


def _operators(document: Mapping[str, Any]) -> dict[int, Operator]:
    """Operators by the id that Kineto also has."""
    schema = document.get("schema")
    if not isinstance(schema, str) or not SCHEMA.match(schema):
        raise Problem("is no execution trace of PyTorch's ExecutionTraceObserver", found=schema,
                      allowed="a schema such as 1.1.1-chakra.0.0.4")
    found = {}
    try:
        for node in reading.Node(document, "")["nodes"].each():
            given = {one["name"].text(): one["value"] for one in node["attrs"].each()}
            if "rf_id" not in given:
                raise reading.FileError("rf_id is missing in the attrs of a node")
            if given["rf_id"].plain():  # what has none is the process and its threads
                found[given["rf_id"].whole(1, MOST_ID)] = _operator(node, given)
    except reading.FileError as error:
        raise Problem(str(error), allowed="an execution trace that was closed "
                      "(unregister_callback)") from None
    return found


def _operator(node: reading.Node, attributes: Mapping[str, reading.Node]) -> Operator:
    inputs, outputs = (node[name]["values"] for name in ("inputs", "outputs"))
    for values in (inputs, outputs):
        if not isinstance(values.plain(), list):
            values.fail("a list")
    return Operator(node["id"].whole(0, MOST_ID), node["ctrl_deps"].whole(0, MOST_ID),
                    node["name"].text(), inputs.plain(), outputs.plain(),
                    {name: value.plain() for name, value in attributes.items()})


def _base_ns(document: Mapping[str, Any]) -> int:
    """The time of day that Kineto's own times count from."""
    try:
        return reading.Node(document, "")["baseTimeNanoseconds"].whole(0, MOST_ID)
    except reading.FileError as error:
        raise Problem(str(error), allowed="the file of export_chrome_trace") from None


def _events(document: Mapping[str, Any]) -> tuple[float, list[Event]]:
    """The time of the first event in the file's microseconds, and all events since then."""
    spans = document.get("traceEvents")
    if not isinstance(spans, list):
        raise Problem("is no trace of Kineto's", allowed="the file of export_chrome_trace")
    try:
        found = [_event(reading.Node(span, f"traceEvents[{number}]"))
                 for number, span in enumerate(spans) if isinstance(span, dict)
                 and span.get("ph") == "X" and span.get("cat") in (*HOST, *ON_GPU)]
    except reading.FileError as error:
        raise Problem(str(error), allowed="the file of export_chrome_trace") from None
    if not any(event.kind in HOST and not OF_CPU.fullmatch(event.name) for event in found):
        raise Problem("holds no operators", allowed="the trace of a profiled step: write it in "
                      "on_trace_ready, before the next cycle clears it")
    first = min(event.start for event in found)
    moved = [event._replace(start=event.start - first, end=event.end - first) for event in found]
    return first, sorted(moved, key=lambda event: (event.start, -event.end))


def _event(span: reading.Node) -> Event:
    more = span.get("args") or reading.Node({}, "")
    start, thread = span["ts"].number(-MOST_US, MOST_US), _name(span["tid"])
    function, external, correlation = (
        None if (given := more.get(name)) is None else given.whole(-1, MOST_ID)
        for name in ("Record function id", "External id", "correlation"))
    stream = more.get("stream")
    return Event(start, start + span["dur"].number(0, MOST_US), span["name"].text(),
                 span["cat"].text(), thread, function, external, correlation,
                 thread if stream is None else _name(stream))


def _name(value: reading.Node) -> int | str:
    """Of a thread or a stream."""
    found = value.plain()
    if isinstance(found, bool) or not isinstance(found, int | str):
        value.fail("a number or a text")
    return found


# ---- what is sent

class Call(NamedTuple):
    """A collective or a message that a rank asks for."""

    kind: str
    group: str | None
    """None where nothing names it."""
    nbytes: int
    storages: frozenset[int]
    peer: int
    tag: int
    on_gpu: bool
    name: str


class Asked(NamedTuple):
    """A call, the host's event that asks for it, and its recorded time."""

    call: Call
    by: Event
    start: float
    end: float


def _kind(name: str) -> str | None:
    """Chakra's name of a collective; None for what sends nothing."""
    plain = name.lower().replace("_", "").removeprefix("nccl:")
    if plain.startswith(NONE):
        return None
    found = next((KINDS[start] for start in sorted(KINDS, key=len, reverse=True)
                  if plain.startswith(start)), None)
    if found is None:
        raise Problem(f"holds the collective {show(name)}", allowed=listing(list(KINDS)))
    return found


def _call(operator: Operator, groups: _GroupsOfCalls) -> Call | None:
    """Traffic of an operator, if it has any."""
    of_cpu = OF_CPU.fullmatch(operator.name) or ASKED.fullmatch(operator.name)
    if of_cpu is None and operator.name != "record_param_comms":
        return None
    given = operator.attributes
    name = of_cpu[1] if of_cpu else str(given.get("collective_name") or next(
        (value for value in operator.inputs if isinstance(value, str)), ""))
    kind = _kind(name)
    if kind is None:
        return None
    plain = name.lower().replace("_", "")
    second = operator.name.startswith("c10d::") and plain.startswith(INTO)
    goes_in = operator.inputs[1:2] if second else operator.inputs
    nbytes = 0 if kind == "barrier" else sum(
        tensor[3] * tensor[4] for tensor in _tensors(goes_in))
    every = _tensors([operator.inputs, operator.outputs])
    if not 0 <= nbytes <= MOST_CALL:
        raise Problem(f"{show(operator.name)} of the id {operator.number} has {nbytes} bytes",
                      allowed=f"0 to {MOST_CALL}")
    group = groups.of(operator)
    return Call(kind, group, nbytes, frozenset(tensor[1] for tensor in every),
                *(_peer_and_tag(operator, groups.ranks.get(group or "", ()))
                  if kind in MESSAGES else (-1, 0)),
                of_cpu is None, operator.name if of_cpu else f"nccl:{name}")


def _peer_and_tag(operator: Operator, members: Sequence[int]) -> tuple[int, int]:
    """The other rank of a message, as all ranks are counted, and its tag.

    The group's own count stands in ``c10d::`` after tensors and group, before the tag, and in
    ``record_param_comms`` before the name of the call. The backend's own span, which ``c10d::``
    stands for, has neither.
    """
    if OF_CPU.fullmatch(operator.name):
        return -1, 0
    if operator.name.startswith("c10d::recv_any"):
        raise Problem(f"{show(operator.name)} of the id {operator.number} does not name the sender",
                      allowed="messages from a rank that is named")
    peer, tag = -1, 0
    if operator.name.startswith("c10d::"):
        peer, tag = (*operator.inputs[2:4], -1, -1)[:2]
    else:
        name = next((at for at, one in enumerate(operator.inputs) if isinstance(one, str)), 0)
        peer = operator.inputs[name - 1] if name else -1
    most = len(members) - 1 if members else MOST_RANKS
    for what, found, least, highest in (("the other rank", peer, 0, most),
                                        ("the tag", tag, -MOST_TAG, MOST_TAG)):
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= highest:
            raise Problem(f"{show(operator.name)} of the id {operator.number} has {show(found)} as "
                          f"{what}", allowed=f"a whole number from {least} to {highest}")
    return members[peer] if members else peer, tag


class _GroupsOfCalls:
    """Process groups of calls, and the ranks of each; an empty list means all.

    NCCL's calls name theirs, gloo's do not. A functional collective (``_c10d_functional::``) names
    the group of the call that it makes; the flight recorder names the groups of other calls. The
    backend's span, which may lie in another thread, is found by the storage of its tensors.
    """

    def __init__(self, operators: Mapping[int, Operator], groups: Mapping[str, str],
                 noted: Mapping[int, str]) -> None:
        self.ranks = {name: ranks for text in groups.values() for name, ranks in named_groups(text)}
        self.noted = {operators[number].number: group for number, group in noted.items()
                      if number in operators}
        self.by_id = {operator.number: operator for operator in operators.values()}
        self.of_storage: dict[int, dict[int, str | None]] = {}
        for operator in sorted(operators.values(), key=lambda one: one.number):
            if ASKED.fullmatch(operator.name):
                group = self._above(operator)
                for tensor in _tensors([operator.inputs, operator.outputs]):
                    self.of_storage.setdefault(tensor[1], {})[operator.number] = group

    def of(self, operator: Operator) -> str | None:
        """The group of a call, or None."""
        if operator.name == "record_param_comms":
            return _named(operator)
        if len(self.ranks) < 2:
            return next(iter(self.ranks), "0")
        return self._above(operator) or self._before(operator)

    def _above(self, operator: Operator) -> str | None:
        """The group that is noted, or that a functional collective around a call names."""
        seen: set[int] = set()
        at: Operator | None = operator
        while at is not None and at.number not in seen:
            if at.name.startswith(FUNCTIONAL) and at.inputs and isinstance(
                    group := at.inputs[-1], str) and group in self.ranks:
                return group
            seen.add(at.number)
            at = self.by_id.get(at.parent)
        return self.noted.get(operator.number)

    def _before(self, operator: Operator) -> str | None:
        """The group of the last call before a backend's span that has its tensors."""
        earlier = {number: group for tensor in _tensors([operator.inputs, operator.outputs])
                   for number, group in self.of_storage.get(tensor[1], {}).items()
                   if number < operator.number}
        return earlier[max(earlier)] if earlier else None


def _named(operator: Operator) -> str:
    """The group of ``record_param_comms``: an attribute, or before 1.1 a pair of texts."""
    return str(operator.attributes.get("pg_name") or next(
        (value[0] for value in operator.inputs if isinstance(value, list) and len(value) == 2
         and all(isinstance(one, str) for one in value)), "0"))


def _tensors(values: Any) -> Iterator[list[Any]]:
    """Tensors of a list of values: number, storage, offset, elements, bytes of one, device."""
    if isinstance(values, list):
        if len(values) == 6 and isinstance(values[5], str) and all(
                isinstance(one, int) for one in values[:5]):
            yield values
        else:
            for one in values:
                yield from _tensors(one)


def _groups(operators: Mapping[int, Operator]) -> dict[str, str]:
    """Texts of ``process_group:init``, and under each the names of its groups."""
    found: dict[str, str] = {}
    for operator in operators.values():
        if "process_group:init" in operator.name and operator.inputs:
            for name, ranks in named_groups(operator.inputs[0]):
                found[name] = json.dumps([{"pg_name": name, "ranks": ranks}])
    return found


# ---- the time of a thread

def pieces(events: Sequence[Event]) -> list[Piece]:
    """Cut the time of a thread where an event begins or ends, pauses between events included."""
    made: list[Piece] = []
    open_events: list[Event] = []
    at = events[0].start

    def until(time: float) -> None:
        nonlocal at
        if time > at:
            made.append(Piece(at, time, open_events[-1] if open_events else None))
            at = time

    for event in events:
        while open_events and open_events[-1].end <= event.start:
            until(open_events[-1].end)
            open_events.pop()
        until(event.start)
        open_events.append(event)
    while open_events:
        until(open_events[-1].end)
        open_events.pop()
    return made


def without(start: float, end: float, busy: Sequence[tuple[float, float]]) -> list[
        tuple[float, float]]:
    """Parts of a span in which nothing of ``busy``, sorted by its beginnings, is going on."""
    left, at = [], start
    for first, last in busy:
        if last <= at:
            continue
        if first >= end:
            break
        if first > at:
            left.append((at, first))
        at = max(at, last)
    return [*left, (at, end)] if at < end else left


def _order(event: Event) -> tuple[float, float, str, str]:
    return event[:4]


class _Rank:
    """The conversion of one rank."""

    def __init__(self, operators: Mapping[int, Operator], calls: Mapping[int, Call],
                 groups: Mapping[str, str], events: Sequence[Event]) -> None:
        self.operators, self.calls, self.groups = operators, calls, groups
        self.threads: dict[Any, list[Event]] = {}
        for event in events:
            if event.kind in HOST and not OF_CPU.fullmatch(event.name):
                self.threads.setdefault(event.thread, []).append(event)
        self.main = min(self.threads, key=lambda thread: self.threads[thread][0].start)
        self.on_gpu = [event for event in events if event.kind in ON_GPU]
        self.external = {event.external: event for event in events
                         if event.kind in ("cpu_op", "user_annotation")}
        self.backend = [event for event in events if OF_CPU.fullmatch(event.name)]
        self.made = _Made()
        self.ends: dict[Any, list[float]] = {thread: [] for thread in self.threads}
        self.at_end: dict[Any, list[int | None]] = {thread: [] for thread in self.threads}

    def nodes(self) -> list[Node]:
        """All nodes, in an order in which each comes after those that it waits for."""
        for text in self.groups.values():
            self.made.nodes.append(Node(
                len(self.made.nodes) + 1, "## process_group:init ##", METADATA,
                inputs=Values(values=text), attributes=(Attribute("is_cpu_op", "bool", True),)))
        self.written: dict[int, int] = {}   # by storage, the GPU's last collective that has it
        self.on_cpu: dict[int, int] = {}    # the same of the CPU, until an operator takes it up
        self.of_stream: dict[Any, int] = {}
        self.of_group: dict[str, int] = {}
        self.done: list[tuple[float, int]] = []  # ends of the CPU's collectives
        self.kernel: int | None = None      # launched last
        for _, step in sorted(self._steps(), key=lambda pair: pair[0]):
            step()
        return self.made.nodes

    def _steps(self) -> Iterator[tuple[tuple[float, int], Any]]:
        """Calls that add nodes, each with the host's time of the request."""
        for thread, piece in self._pieces():
            yield (piece.end, 0), lambda t=thread, p=piece: self._add_piece(t, p)
        launches = {event.correlation: event for event in self._host() if event.kind in CALLS}
        for event in self.on_gpu:
            launch = launches.get(event.correlation)
            by = self.external.get(event.external)
            if not event.name.startswith("nccl"):
                time = launch.end if launch else event.start
                yield (time, 1), lambda e=event, s=launch, b=by: self._add_kernel(e, s, b)
        for asked in (*self._of_gpu(), *self._of_cpu()):
            yield (asked.by.end, 2), lambda a=asked: self._add_call(a)

    def _host(self) -> Iterator[Event]:
        for events in self.threads.values():
            yield from events

    def _of_gpu(self) -> Iterator[Asked]:
        """NCCL's calls, each with the time of the kernel that it launched, if there is one."""
        found = [(event, call) for event in sorted(self._host(), key=_order)
                 if event.name == "record_param_comms" and (call := self._call(event))]
        starts = [event.start for event, _ in found]
        kernels: dict[Event, Event] = {}
        for event in self.on_gpu:
            by = self.external.get(event.external)
            at = bisect_right(starts, by.start) if by and event.name.startswith("nccl") else 0
            if at and by and found[at - 1][0].end >= by.end:
                kernels.setdefault(found[at - 1][0], event)
        for event, call in found:
            span = kernels.get(event, event)
            yield Asked(call, event, span.start, span.end)

    def _of_cpu(self) -> Iterator[Asked]:
        """Calls of other backends: those of ``c10d::``, with the backend's own time.

        The backend closes its span after the caller has gone on, so it may end late or be missing:
        at the latest the call is over when the next operator takes up its tensors.
        """
        with_nccl = {operator.parent for operator in self.operators.values()
                     if operator.name == "record_param_comms"}
        spans = list(self.backend)
        for event in sorted(self._host(), key=_order):
            operator = self.operators.get(event.function or 0)
            if operator is None or operator.number in with_nccl or not (
                    ASKED.fullmatch(event.name)) or not (call := self._call(event)):
                continue
            own = self._own(event, call, spans)
            taken = min((one.start for one in self._host() if one.start >= event.end
                         and self._storages(one) & call.storages), default=None)
            if own:
                spans = [span for span in spans if span not in own]
                end = min(max(span.end for span in own), taken or math.inf)
                yield Asked(call, event, min(own[0].start, end), end)
            else:
                yield Asked(call, event, event.end, taken or event.end)
        for span in spans:  # of functional collectives, which ask the backend themselves
            if call := self._call(span):
                yield Asked(call, span, span.start, span.end)

    def _own(self, event: Event, call: Call, spans: Sequence[Event]) -> list[Event]:
        """The backend's spans of a call of ``c10d::``.

        Their numbers are given in the call, so they lie before that of what the thread did next.
        Tensors alone do not tell: a barrier has none, a reduce-scatter reduces copies, and memory
        is used again. They decide between calls of two threads.
        """
        number = event.function or 0
        after = min((one.function for one in self.threads[event.thread]
                     if one.start >= event.end and one.function and one.function > number),
                    default=MOST_ID)
        inside = [span for span in spans if number < (span.function or 0) < after]
        return [span for span in inside if self._storages(span) & call.storages] or inside

    def _call(self, event: Event) -> Call | None:
        return self.calls.get(event.function or 0)

    def _storages(self, event: Event | None) -> set[int]:
        """Storages that an operator reads and writes."""
        operator = self.operators.get(event.function or 0) if event else None
        return {tensor[1] for tensor in _tensors([operator.inputs, operator.outputs])} if (
            operator) else set()

    def _pieces(self) -> Iterator[tuple[Any, Piece]]:
        """Pieces of all threads; the main thread's Python is without what others did meanwhile."""
        cut = {thread: pieces(events) for thread, events in self.threads.items()}
        busy = sorted((piece.start, piece.end) for thread, own in cut.items()
                      if thread != self.main for piece in own if piece.event is not None)
        for thread, own in cut.items():
            for piece in own:
                idle = piece.event is None or piece.event.kind == "user_annotation"
                if thread == self.main and idle:
                    for start, end in without(piece.start, piece.end, busy):
                        yield thread, Piece(start, end, None)
                elif piece.event is not None:
                    yield thread, piece

    def _add_piece(self, thread: Any, piece: Piece) -> None:
        ends, last = self.ends[thread], self.at_end[thread]
        after = {last[-1]} if last else set()
        if not ends or ends[-1] < piece.start:
            after.add(self._other(thread, piece.start))
        start, waits = self._waits(piece)
        name = piece.event.name if piece.event else "Python"
        node = next(iter(after)) if after else None
        if waits or len(after) > 1 or round(piece.end) > round(start):
            node = self.made.add(name, COMP, start, piece.end, after | waits,
                                 (Attribute("is_cpu_op", "bool", True),))
        ends.append(piece.end)
        last.append(node)

    def _other(self, thread: Any, time: float) -> int | None:
        """The node of another thread that was over last at a time."""
        before = [(ends[at - 1], self.at_end[one][at - 1]) for one, ends in self.ends.items()
                  if one != thread and (at := bisect_right(ends, time))]
        return max(before, key=lambda pair: pair[0])[1] if before else None

    def _waits(self, piece: Piece) -> tuple[float, set[int | None]]:
        """From when on a piece is work, and what it waited for until then."""
        if piece.event is None:
            self.done = [(end, node) for end, node in self.done if end > piece.start]
            over = [(end, node) for end, node in self.done if end <= piece.end]
            return (max(end for end, _ in over) if over else piece.start), {n for _, n in over}
        if piece.event.kind in CALLS and "Synchronize" in piece.event.name:
            return piece.end, {self.kernel, *self.of_stream.values()} - {None}
        return piece.start, {self.on_cpu.pop(storage) for storage in self._storages(piece.event)
                             if storage in self.on_cpu}

    def _before(self, event: Event) -> int | None:
        """The host's last node of an event."""
        at = bisect_right(self.ends[event.thread], event.end)
        return self.at_end[event.thread][at - 1] if at else None

    def _add_kernel(self, event: Event, launch: Event | None, by: Event | None) -> None:
        after = {self._before(launch) if launch else None, self.of_stream.get(event.stream),
                 *(self.written.get(storage) for storage in self._storages(by))}
        self.kernel = self.of_stream[event.stream] = self.made.add(
            event.name, COMP, event.start, event.end, after,
            (Attribute("is_cpu_op", "bool", False),))

    def _add_call(self, asked: Asked) -> None:
        call, thread = asked.call, asked.by.thread
        if call.group is None:
            raise Problem(f"{call.name} does not name its group, and there are {len(self.groups)}",
                          allowed="one process group, NCCL's groups, functional collectives, or "
                          "for all but messages the files of --flight")
        after = {self._before(asked.by) if thread in self.ends else self._other(
            thread, asked.by.start)}
        if call.on_gpu:
            after |= {self.kernel, self.of_group.get(call.group)}
        kind = {"send": SEND, "recv": RECV}.get(call.kind, COLL)
        node = self.made.add(call.name, kind, asked.start, asked.end, after, _attributes(call))
        self.of_group[call.group] = node
        (self.written if call.on_gpu else self.on_cpu).update(dict.fromkeys(call.storages, node))
        if not call.on_gpu:
            self.done.append((asked.end, node))


def _attributes(call: Call) -> tuple[Attribute, ...]:
    common = (Attribute("is_cpu_op", "bool", False), Attribute("comm_size", "int64", call.nbytes))
    if call.kind in MESSAGES:
        peer = "comm_dst" if call.kind == "send" else "comm_src"
        return (*common, Attribute(peer, "int32", call.peer),
                Attribute("comm_tag", "int32", call.tag))
    return (*common, Attribute("comm_type", "int64", COLLECTIVES.index(call.kind)),
            Attribute("pg_name", "string", call.group))
