"""Rank 0's decisions: which tensors are ready at all ranks, and which are sent together.

Ranks ask for collectives by a tensor's name, each in its own order. A `Coordinator` hears the
requests of all ranks and returns responses: the calls that all ranks make, in one order. It uses
no clock, thread or network, so that a test can play any order of events.

A tensor is ready when every rank that has not joined asked for it; one that belongs to a group is
ready when the whole group is. Requests for one name must agree, else each rank gets the same error,
for the whole group.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import astuple, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from harp.lightcc.fusion import fuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

KNOWN = 10_000
"""The most requests that are remembered; calls without a name get a new one each time."""
UNEVEN = ("allgather", "alltoall")
"""Calls in which each rank may bring another number of rows."""


@dataclass(frozen=True)
class Request:
    """One rank's wish for one tensor."""

    kind: str
    """``allreduce``, ``allgather``, ``broadcast``, ``alltoall``, ``reducescatter``, ``barrier`` or
    ``join``; or `WAIT`."""
    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    nbytes: int = 0
    detail: str = ""
    """The reduction, or the root: what else must agree."""
    sparse: bool = False
    """Whether top-k may send a part of it."""
    splits: tuple[int, ...] = ()
    """Rows for each rank, of an ``alltoall``."""
    group: str = ""
    """A rank asks for all of a group in one message."""
    group_size: int = 1

    @property
    def agreed(self) -> tuple[Any, ...]:
        """Fields that must agree at all ranks."""
        shape = self.shape[1:] if self.kind in UNEVEN else self.shape
        return (self.kind, self.dtype, len(self.shape), shape, self.detail, self.sparse,
                self.group_size)

    @property
    def fused_with(self) -> tuple[Any, ...]:
        """Tensors with the same may be sent together."""
        return self.dtype, self.detail, self.sparse

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "a number"
        more = [self.detail] * bool(self.detail) + ["sparse"] * self.sparse
        more += [f"in a group of {self.group_size}"] * bool(self.group)
        return ", ".join([f"{self.kind} of {shape} {self.dtype}", *more])


WITH_JOINED = ("allreduce by sum", "allreduce by avg", "barrier")
"""Calls that work while ranks have joined: these bring zeros, which change no sum."""
WAIT = Request("wait", "wait")
"""A rank's caller waits for its requests, so it will send no more until they are over."""


@dataclass(frozen=True)
class Response:
    """One call that all ranks carry out, or that fails at all of them."""

    requests: tuple[Request, ...]
    """Each rank has its own part of these by the name; ranks that joined bring zeros."""
    rows: tuple[tuple[int, ...], ...] = ()
    """By rank: its rows of each tensor (``allgather``), or for each rank (``alltoall``)."""
    error: str = ""
    gone: bool = False
    """Whether it fails because a rank has left, not by a mistake of the caller."""
    last: int = -1
    """Of a ``join``: the rank that came last."""
    tuned: dict[str, Any] = field(default_factory=dict)
    """Settings that hold from this call on (`harp.lightcc.horovod.autotune`)."""


class Codec:
    """Messages from one rank to another, or of rank 0 to all.

    Training requests the same tensors in each step, so a request sent before is a number.
    Both ends count alike, since messages arrive in order.
    """

    def __init__(self) -> None:
        self._numbers: dict[Request, int] = {}
        self._known: list[Request] = []

    def pack_requests(self, requests: Iterable[Request]) -> Bytes:
        """Make a message of requests."""
        return _make_message([self._encode_request(request) for request in requests])

    def unpack_requests(self, message: Bytes) -> list[Request]:
        """Take it apart."""
        return [self._decode_request(coded) for coded in json.loads(bytes(message))]

    def pack_responses(self, responses: Iterable[Response]) -> Bytes:
        """Make a message of responses."""
        return _make_message([
            [[self._encode_request(request) for request in response.requests], response.rows,
             response.error, response.gone, response.last, response.tuned]
            for response in responses])

    def unpack_responses(self, message: Bytes) -> list[Response]:
        """Take it apart."""
        return [Response(tuple(map(self._decode_request, requests)), tuple(map(tuple, rows)), *more)
                for requests, rows, *more in json.loads(bytes(message))]

    def _encode_request(self, request: Request) -> int | tuple[Any, ...]:
        number = self._numbers.get(request)
        if number is not None:
            return number
        self._remember_request(request)
        return astuple(request)

    def _decode_request(self, coded: int | list[Any]) -> Request:
        if isinstance(coded, int):
            return self._known[coded]
        values: list[Any] = [tuple(value) if isinstance(value, list) else value for value in coded]
        request = Request(*values)
        self._remember_request(request)
        return request

    def _remember_request(self, request: Request) -> None:
        if len(self._known) < KNOWN:
            self._numbers[request] = len(self._known)
            self._known.append(request)


def _make_message(content: Any) -> Bytes:
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


@dataclass
class _Waiting:
    """A name that not all ranks asked for yet."""

    since_s: float
    requests: dict[int, Request] = field(default_factory=dict)
    warned: bool = False


class Coordinator:
    """The decisions for a set of ``ranks``."""

    def __init__(self, ranks: int, threshold_bytes: int) -> None:
        self.threshold_bytes = threshold_bytes
        """The largest bucket of several tensors; may change at any time."""
        self._ranks = ranks
        self._waiting: dict[str, _Waiting] = {}
        self._joined: list[int] = []
        self._gone: dict[int, str] = {}
        self._waiters: set[int] = set()
        self._ready: list[list[dict[int, Request]]] = []
        self._parts: dict[str, list[dict[int, Request]]] = defaultdict(list)

    @property
    def has_responses(self) -> bool:
        """Whether `decide` has anything to say."""
        return bool(self._ready) or len(self._joined) == self._ranks

    @property
    def expects_more(self) -> bool:
        """Whether tensors may come that could be sent with those that are ready."""
        return len(self._waiters.union(self._joined, self._gone)) < self._ranks

    def oldest_s(self, *, warned: bool = True) -> float | None:
        """Since when the oldest tensor waits; of those that `stalled` has not named, if asked."""
        # The order in which they came is that of the dict.
        return next((waiting.since_s for waiting in self._waiting.values()
                     if warned or not waiting.warned), None)

    def hear(self, rank: int, requests: Sequence[Request], now_s: float) -> list[str]:
        """Take what a rank asks for. Gives the names for which it was the first one."""
        new = []
        self._waiters.discard(rank)
        for request in requests:
            if request == WAIT:
                self._waiters.add(rank)
                continue
            if request.kind == "join":
                self._joined.append(rank)
                continue
            if request.name not in self._waiting:
                self._waiting[request.name] = _Waiting(now_s)
                new.append(request.name)
            self._waiting[request.name].requests[rank] = request
        joined = any(request.kind == "join" for request in requests)
        self._find_ready(list(self._waiting) if joined else
                         dict.fromkeys(request.name for request in requests))
        return new

    def leave(self, rank: int, why: str) -> None:
        """Know that a rank has shut down: what waits for it fails, and what comes later."""
        self._gone[rank] = why
        self._find_ready(list(self._waiting))

    def decide(self) -> list[Response]:
        """Say what all ranks do now."""
        ready, self._ready = self._ready, []
        responses: list[Response] = []
        buckets: dict[tuple[Any, ...], list[Request]] = defaultdict(list)
        for together in ready:
            firsts = [of_ranks[min(of_ranks)] for of_ranks in together]
            error = next(filter(None, map(self._find_error, together)), "")
            if error:
                gone = bool(self._gone) and any(len(part) < self._ranks for part in together)
                requests = (*firsts, *self._forget_group(firsts[0].group))
                responses.append(Response(requests, error=error, gone=gone))
            elif firsts[0].kind == "allreduce":
                for first in firsts:
                    buckets[first.fused_with].append(first)
            else:
                responses += self._fuse_group(together)
        responses += [Response(tuple(bucket)) for together in buckets.values()
                    for bucket in self._cut_buckets(together)]
        if len(self._joined) == self._ranks:
            responses.append(Response((Request("join", "join"),), last=self._joined[-1]))
            self._joined = []
        return responses

    def stalled(self, before_s: float) -> list[str]:
        """Give a sentence about each tensor that waits since before a time, once."""
        found = []
        for name, waiting in self._waiting.items():
            if waiting.since_s <= before_s and not waiting.warned:
                waiting.warned = True
                found.append(self._describe_wait(name, waiting))
        return found

    def oldest(self) -> str:
        """Give the sentence about the tensor that waits longest."""
        return next(self._describe_wait(*item) for item in self._waiting.items())

    def _describe_wait(self, name: str, waiting: _Waiting) -> str:
        missing = sorted(set(range(self._ranks)) - set(waiting.requests) - set(self._joined))
        return (f"{name} waits for {_name_ranks(missing)}; {_name_ranks(waiting.requests)} asked "
                "for it")

    def _find_ready(self, names: Iterable[str]) -> None:
        for name in names:
            waiting = self._waiting.get(name)
            if waiting is None or (len(waiting.requests) < self._ranks
                                   and self._is_missed(waiting)):
                continue
            del self._waiting[name]
            first = waiting.requests[min(waiting.requests)]
            parts = self._parts[first.group] if first.group else []
            parts.append(waiting.requests)
            # Of sizes that differ the smallest one is enough to say so.
            if len(parts) >= min(one.group_size for one in waiting.requests.values()):
                self._ready.append(parts)
                self._parts.pop(first.group, None)

    def _forget_group(self, group: str) -> list[Request]:
        """Forget the rest of a group, where ranks have different numbers of its tensors."""
        left = {name: request for name, waiting in self._waiting.items() if group
                for request in waiting.requests.values() if request.group == group}
        for name in left:
            del self._waiting[name]
        return list(left.values())

    def _is_missed(self, waiting: _Waiting) -> bool:
        """Whether a rank may still ask for it."""
        missing = set(range(self._ranks)) - set(waiting.requests) - set(self._joined)
        return bool(missing) and not missing <= set(self._gone)

    def _find_error(self, of_ranks: dict[int, Request]) -> str:
        first_rank = min(of_ranks)
        first = of_ranks[first_rank]
        for rank, request in sorted(of_ranks.items()):
            if request.agreed != first.agreed:
                return (f"ranks do not agree on {first.name}: rank {first_rank} calls {first}, "
                        f"rank {rank} calls {request}")
        missing = set(range(self._ranks)) - set(of_ranks)
        if missing & set(self._gone):
            return f"{first.name}: {self._gone[min(missing & set(self._gone))]}"
        what = f"{first.kind} by {first.detail}" if first.kind == "allreduce" else first.kind
        if missing and what not in WITH_JOINED:
            return (f"{first.name}: {what} is not possible while "
                    f"{_name_ranks(sorted(missing))} joined; allreduce by sum or average and "
                    "barrier are")
        return ""

    def _fuse_group(self, group: list[dict[int, Request]]) -> Iterable[Response]:
        """Give the calls of a group: tensors of one type go together, up to the threshold."""
        alike: dict[tuple[Any, ...], list[dict[int, Request]]] = defaultdict(list)
        for of_ranks in group:
            alike[of_ranks[min(of_ranks)].fused_with].append(of_ranks)
        for parts in alike.values():
            gathers = parts[0][min(parts[0])].kind == "allgather"
            sizes = [sum(one.nbytes for one in of_ranks.values()) if gathers
                     else of_ranks[min(of_ranks)].nbytes for of_ranks in parts]
            for start, end in pairwise([*fuse(sizes, self.threshold_bytes), len(parts)]):
                firsts = tuple(of_ranks[min(of_ranks)] for of_ranks in parts[start:end])
                yield Response(firsts, _rows_by_rank(parts[start:end]))

    def _cut_buckets(self, together: list[Request]) -> Iterable[tuple[Request, ...]]:
        grouped = [request for request in together if request.group]
        for name in dict.fromkeys(request.group for request in grouped):
            yield tuple(request for request in grouped if request.group == name)
        alone = [request for request in together if not request.group]
        starts = fuse([request.nbytes for request in alone], self.threshold_bytes)
        for start, end in pairwise([*starts, len(alone)]):
            yield tuple(alone[start:end])


def _rows_by_rank(parts: Sequence[dict[int, Request]]) -> tuple[tuple[int, ...], ...]:
    ranks = sorted(parts[0])
    if parts[0][ranks[0]].kind == "alltoall":
        return tuple(parts[0][rank].splits for rank in ranks)
    return tuple(tuple(rows for of_ranks in parts for rows in of_ranks[rank].shape[:1])
                 for rank in ranks)


def _name_ranks(numbers: Iterable[int] | Sequence[int]) -> str:
    named = ", ".join(map(str, sorted(numbers)))
    return ("ranks " if "," in named else "rank ") + named
