"""A group of ranks and its collectives on host memory, over HARP connections.

A collective runs the plan of `harp.collectives` that `harp.lightcc.settings` chooses; the simulator
runs the same plan. Every rank must make the same calls in the same order. A group consists of::

    Group ─┬─ Peers         two connections to each other rank, and the engines under them
           ├─ Mover         moves the pieces of collectives over the first, in C
           ├─ CallQueue     runs calls in their order, by the mover
           ├─ PointToPoint  messages between two ranks and news of failures, over the second
           └─ Failure       the one sentence that says why the group has failed

The group owns all five; each is given those that it uses, and none holds the group. CallQueue and
PointToPoint report to Failure, and so does the group's `fail` and `abort`. When the sentence is
known, Failure ends the mover's pieces and the waiting receives. One thread runs the event loop of
PointToPoint and Failure, another one the queue.

Each call begins with a descriptor that goes to the next rank of the ring and is compared there. So
ranks that do not agree fail with a sentence that says what each of them called; they do not wait
for one another. A call that fails, for whatever reason, fails the group at all ranks with the same
sentence. Calls under way are lost, and a new group must be made.

Memory is given as bytes (contiguous numpy arrays of uint8) with the name of the elements' type
(`harp.lightcc.elements`), and belongs to the group until the future is done.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harp._cnet import ffi
from harp.collectives.few_bits_plan import Parts
from harp.lightcc.alltoallv_program import Counts, program_of, program_of_counts
from harp.lightcc.call_queue import CallQueue
from harp.lightcc.elements import combination, divide, element_type, move
from harp.lightcc.failure import FAILED, LEAVE_S, SYMPTOM, Failure, GroupError
from harp.lightcc.few_bits import FewBits
from harp.lightcc.few_bits_ring import FewBitsRing
from harp.lightcc.mover import INLINE_DESCRIPTOR_BYTES, Mover
from harp.lightcc.p2p import DATA, PointToPoint
from harp.lightcc.peers import Peers, telling_others
from harp.lightcc.pieces import PLACE, SEND, address, cut, in_turn, plan_pieces, table
from harp.lightcc.policy import allreduce_path, between_path, tuning_of
from harp.lightcc.program import Program, small_broadcast
from harp.lightcc.settings import INDEX_BYTES, WHOLE_BITS, LightSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from harp.collectives.collective_plan import Plan
    from harp.lightcc.call_queue import Waiter
    from harp.lightcc.peers import Store
    from harp.lightcc.policy import PlanPath

    Bytes = NDArray[np.uint8]


class ErrorPart(NamedTuple):
    """The elements of a tensor among which a rank selects."""

    first: int
    elements: int
    holders: int
    """Ranks that select among the same elements, each of its own gradients."""
    room: int
    """Elements of the error's memory, which these begin; 0 where the tensor is not sent
    sparsely."""


class Between(NamedTuple):
    """Parts of a bucket that hosts sum, where the ranks of each host have divided it."""

    ranks: tuple[int, ...]
    """One of each host, with the same part."""
    bucket_bytes: int


def _describe_plan(name: str, parameters: Mapping[str, Any]) -> str:
    """Give all that shapes a plan, in words: ranks compare them."""
    of = {"group": "groups of {}", "ratio": "ratio {}", "value_bytes": "values of {} B"}
    return ", ".join([name, *(of.get(key, key + " {}").format(value)
                              for key, value in parameters.items())])


PROGRAMS = 256
"""Programs that a group keeps: those of the buckets of a model and its optimizer's states."""

_groups: weakref.WeakSet[Group] = weakref.WeakSet()
"""Groups of this process that are not closed."""
_listing = threading.Lock()


def _all_groups() -> list[Group]:
    with _listing:
        return list(_groups)


@atexit.register
def _close_all() -> None:
    for group in _all_groups():
        group.close()


FORKED = "this process is a child of fork: only the process that made the group may use it"


def _leave_all() -> None:
    for group in _all_groups():
        group.forked()


os.register_at_fork(before=_listing.acquire, after_in_parent=_listing.release,
                    after_in_child=_listing.release)
os.register_at_fork(after_in_child=_leave_all)


class Group:
    """One rank of a group.

    Args:
        rank: the number of this rank, from 0.
        ranks: the number of ranks.
        store: where the ranks find each other, for this group alone (`harp.lightcc.peers`).
        timeout_s: a call that takes longer fails the group.
        settings: the LIGHT_* variables; those of the environment by default.
        members: the numbers of the ranks in the job, if it has others: a group of the same job is
            not made where this one has found that one of them is gone.
        is_job: whether it is the job's first group, of all ranks, without which a rank makes no
            other: none is made with a rank that has left it.

    Raises the network's error if the other ranks cannot be reached in that time, and GroupError
    where one of them fails before the group is made.
    """

    def __init__(self, rank: int, ranks: int, store: Store, timeout_s: float = 1800.0,
                 settings: LightSettings | None = None,
                 members: Sequence[int] | None = None, *, is_job: bool = False) -> None:
        self._members, self._is_job = members, is_job
        with telling_others(rank, ranks, store):
            self._make(rank, ranks, store, timeout_s, settings)
        with _listing:
            _groups.add(self)

    def _make(self, rank: int, ranks: int, store: Store, timeout_s: float,
              settings: LightSettings | None) -> None:
        self.rank, self.ranks = rank, ranks
        self._programs: dict[Any, Program] = {}
        self._few_bits: dict[Any, FewBits | FewBitsRing] = {}
        self.settings = settings or LightSettings.from_env(os.environ)
        self.timeout_s = timeout_s
        self._tuning = tuning_of(os.environ)
        self._process = os.getpid()
        self._token = np.zeros(1, np.uint8)
        self._peers = Peers(rank, ranks, store, timeout_s, find_gone=self._find_gone)
        self._loop = asyncio.new_event_loop()
        self._failure = Failure(rank, ranks, timeout_s, self._peers.dead_s + 2 * LEAVE_S,
                                self._loop)
        self._queue = CallQueue(rank, timeout_s, self._failure)
        self._mover: Mover | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True,
                                        name=f"lightcc {rank}")
        self._thread.start()
        try:
            self._on_loop(self._open_connections()).result()
        except BaseException:
            self.close()
            raise

    def _on_loop(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        if os.getpid() != self._process:
            work.close()
            raise GroupError(FORKED)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open_connections(self) -> None:
        await self._peers.connect()
        self._p2p = PointToPoint(self._peers.p2p, self._failure)
        self._mover = Mover(self._peers)
        self._failure.attach(self._p2p, self._mover)
        self._queue.start(self._mover)

    def _find_gone(self) -> dict[int, str]:
        """Give ranks of this group that other groups of this process know not to come, and why."""
        gone: dict[int, str] = {}
        for group in _all_groups():
            if group._members is not None:
                if group._is_job:
                    gone |= {group._members[rank]: "has left the job's first group, and makes no "
                             "other" for rank in list(group._p2p.left)}
                gone |= {group._members[rank]: "is gone, as another group of this process has found"
                         for rank in list(group._p2p.gone)}
        return {rank: gone[member] for rank, member in enumerate(self._members or ())
                if member in gone}

    # ---- Collectives ----

    def allreduce(self, data: Bytes, dtype: str, reduction: str = "sum",
                  error: Bytes | None = None, ratio: float | None = None, *,
                  sampled: bool = False) -> Future[None]:
        """Reduce all ranks' ``data``; the result replaces it at every rank.

        With ``error``, memory of `error_bytes` that was zero when it was first given, sums and
        averages are sparse where the settings say so: what is not sent is added the next time. A
        ``ratio`` is taken in place of the settings' share. ``sampled``: selected by a threshold
        from a sample (harp_topk_sample), not exactly.

        With LIGHT_BITS they are in few bits, and the error is of what these do not say.
        """
        if error is not None and len(error) and self.settings.bits < WHOLE_BITS:
            path = self._choose_algorithm(len(data), sparse=True)
            if "bits" in path[1]:
                return self._in_few_bits("allreduce", path, data, dtype, reduction, error)
        left = None if error is None else (address(error), len(error))
        return self._repeat_on(("allreduce", dtype, reduction, left, ratio, sampled), data, error,
                               lambda: self._allreduce_program(data, dtype, reduction, error, ratio,
                                                               sampled=sampled))

    def _allreduce_program(self, data: Bytes, dtype: str, reduction: str, error: Bytes | None,
                           ratio: float | None, *, sampled: bool) -> Program:
        is_sparse = error is not None and len(error) > 0
        name, parameters = self._choose_algorithm(len(data), sparse=is_sparse)
        if ratio is not None and "ratio" in parameters:
            parameters["ratio"] = ratio
        return self._reduction_program("allreduce", name, data, dtype, reduction, parameters,
                                       slice(0, len(data)), error, sampled=sampled)

    def error_bytes(self, nbytes: int, dtype: str) -> int:
        """Return the bytes of the error of an allreduce of ``nbytes``; 0 where it is not sparse."""
        return 4 * self.error_part(nbytes, dtype).elements

    def error_part(self, nbytes: int, dtype: str) -> ErrorPart:
        """Return the elements among which this rank selects, and the number of ranks that do."""
        if dtype != "float32":
            return ErrorPart(0, 0, self.ranks, 0)
        name, parameters = self._choose_algorithm(nbytes, sparse=True)
        if "bits" in parameters:
            group = parameters.get("group", 1)
            parts = Parts(nbytes // 4, self.ranks // group, group, parameters["bits"])
            first, end = (int(parts.start(self.rank % group, host)) for host in (0, parts.hosts))
            return ErrorPart(first, end - first, parts.hosts, end - first)
        made = plan_pieces(name, self.ranks, self.rank, nbytes, 4, **parameters)
        elements = made.error_bytes // 4
        return ErrorPart(made.error_offset // 4, elements,
                         self.ranks // parameters.get("group", 1), elements)

    def sum_between(self, data: Bytes, dtype: str, between: Between, error: Bytes | None = None,
                    ratio: float | None = None, *, sampled: bool = False) -> Future[None]:
        """Sum the parts of a bucket that ranks of several hosts have; the rest as `allreduce`.

        All ranks of the group call it, each with parts of the same size.
        """
        if error is not None and self.settings.bits < WHOLE_BITS:
            path = self.between_path(between, len(data), sparse=True)
            if "bits" in path.parameters:
                return self._in_few_bits("sum between hosts", (path.plan, dict(path.parameters)),
                                         data, dtype, "sum", error, between.ranks)
        left = None if error is None else (address(error), len(error))
        return self._repeat_on(("sum_between", dtype, between, left, ratio, sampled), data, error,
                               lambda: self._sum_between_program(data, dtype, between, error, ratio,
                                                                 sampled=sampled))

    def _in_few_bits(self, call: str, path: tuple[str, dict[str, Any]], data: Bytes, dtype: str,
                     reduction: str, error: Bytes,
                     among: tuple[int, ...] | None = None) -> Future[None]:
        """Sum or average in few bits, by memory that is kept for the next call on this data."""
        name, parameters = path
        if dtype != "float32" or reduction not in {"sum", "avg"}:
            raise ValueError(f"{name} takes only sums and averages of float32")
        key = address(data), len(data), among
        if key not in self._few_bits:
            if len(self._few_bits) >= PROGRAMS:
                self._few_bits.clear()
            self._few_bits[key] = (
                FewBitsRing(self, len(data) // 4, parameters["bits"], among, call)
                if name == "ring-few-bits" else
                FewBits(self, len(data) // 4, parameters["bits"],
                        intra=parameters.get("group", 1), among=among, call=call))
        return self._few_bits[key].allreduce(data.view(np.float32), error.view(np.float32),
                                             average=reduction == "avg")

    def _sum_between_program(self, data: Bytes, dtype: str, between: Between, error: Bytes | None,
                             ratio: float | None, *, sampled: bool) -> Program:
        path = self.between_path(between, len(data), sparse=error is not None)
        parameters = dict(path.parameters)
        if ratio is not None and "ratio" in parameters:
            parameters["ratio"] = ratio
        return self._reduction_program(
            "sum between hosts", path.plan, data, dtype, "sum", parameters, slice(0, len(data)),
            error, sampled=sampled, among=between.ranks)

    def between_path(self, between: Between, part_bytes: int, *, sparse: bool) -> PlanPath:
        """Return the path of such a part."""
        return between_path(self.settings, len(between.ranks), between.bucket_bytes, part_bytes,
                            sparse=sparse, tuning=self._tuning)

    @property
    def places(self) -> list[str]:
        """The place of each rank: ranks with the same one share a host's memory."""
        return self._peers.places

    def reduce_scatter(self, data: Bytes, dtype: str, reduction: str = "sum") -> Future[None]:
        """Reduce all ranks' ``data``; of its equal parts a rank's own one is the result."""
        own = self._own_part(data)
        return self._repeat_on(
            ("reduce_scatter", dtype, reduction), data, None, lambda: self._reduction_program(
                "reduce_scatter", "reduce-scatter", data, dtype, reduction, {}, own))

    def examined(self, nbytes: int, dtype: str) -> slice:
        """Return the bytes of a sparse allreduce's data that its error belongs to."""
        if dtype != "float32":
            return slice(0, 0)
        name, parameters = self._choose_algorithm(nbytes, sparse=True)
        if "bits" in parameters:
            part = self.error_part(nbytes, dtype)
            return slice(4 * part.first, 4 * (part.first + part.elements))
        return plan_pieces(name, self.ranks, self.rank, nbytes, 4, **parameters).examined

    @property
    def failure(self) -> str | None:
        """The sentence that says why the group has failed, or None."""
        return self._failure.sentence

    def _reduction_program(self, call: str, plan_name: str, data: Bytes, dtype: str, reduction: str,
                           parameters: dict[str, Any], own: slice, error: Bytes | None = None, *,
                           sampled: bool = False, among: tuple[int, ...] | None = None) -> Program:
        unit = element_type(dtype).itemsize
        ranks = among or tuple(range(self.ranks))
        made = plan_pieces(plan_name, len(ranks), ranks.index(self.rank), len(data), unit,
                           **parameters)
        if made.error_bytes and (dtype != "float32" or reduction not in {"sum", "avg"}
                                 or error is None or len(error) != made.error_bytes):
            raise ValueError(f"{plan_name} takes only sums and averages of float32, with an error "
                             f"of {made.error_bytes} B")
        pairs = np.empty(made.pairs_bytes, np.uint8)
        work = ffi.new("struct harp_piece_work *", {
            "reduce": combination(dtype, reduction),
            "error": ffi.cast("float *", address(error)) if error is not None else ffi.NULL,
            "pair_bytes": INDEX_BYTES + parameters.get("value_bytes", 4),
            "is_sampled": sampled})
        finish = partial(divide, address(data) + own.start, own.stop - own.start, dtype,
                         self.ranks) if reduction == "avg" else None
        return Program(f"{call} of {len(data) // unit} {dtype}, {reduction}, by "
                       f"{_describe_plan(plan_name, parameters)}",
                       made.among(ranks).on(data, pairs), self.rank, self.ranks, work, finish,
                       pairs, inline_descriptor=not among and plan_name == "recursive-doubling"
                       and len(data) <= INLINE_DESCRIPTOR_BYTES, data=data)

    def allgather(self, data: Bytes, dtype: str = "bytes") -> Future[None]:
        """Fill ``data`` at every rank with the equal parts of all; each rank has its own one."""
        def make() -> Program:
            made = plan_pieces("allgather", self.ranks, self.rank, len(data), 1)
            return Program(f"allgather of {len(data)} B, {dtype}", made.on(data, data), self.rank,
                           self.ranks, data=data)
        self._own_part(data)
        return self._repeat_on(("allgather", dtype), data, None, make)

    def broadcast(self, data: Bytes, root: int, dtype: str = "bytes") -> Future[None]:
        """Give every rank the ``data`` of ``root``."""
        return self._repeat_on(("broadcast", root, dtype), data, None,
                               lambda: self._broadcast_program(data, root, dtype))

    def check_rank(self, what: str, rank: int) -> None:
        """Raise ValueError unless the group has this rank; ``what`` it is stands in the sentence.

        Numbers from outside would wrap around, and another rank would be taken without a word.
        """
        if not 0 <= rank < self.ranks:
            raise ValueError(f"the {what} is rank {rank}: the group has ranks 0 to "
                             f"{self.ranks - 1}")

    def _broadcast_program(self, data: Bytes, root: int, dtype: str) -> Program:
        self.check_rank("root of a broadcast", root)
        is_small = len(data) <= INLINE_DESCRIPTOR_BYTES
        pieces = (small_broadcast(data, self.rank, self.ranks, root) if is_small else
                  plan_pieces("broadcast", self.ranks, self.rank, len(data), 1, root=root)
                  .on(data, data))
        return Program(f"broadcast of {len(data)} B, {dtype}, root {root}", pieces, self.rank,
                       self.ranks, inline_descriptor=is_small, data=data)

    def _repeat_on(self, what: tuple[Any, ...], data: Bytes, error: Bytes | None,
                   make: Callable[[], Program]) -> Future[None]:
        return self._repeat_call((address(data), len(data), *what), (data, error), make)

    def _repeat_call(self, key: tuple[Any, ...], memory: Any,
                     make: Callable[[], Program]) -> Future[None]:
        """Begin what may have been called before with the same memory, as training does."""
        return self._queue.begin(self._programs.get(key) or self._keep_program(key, make()), memory)

    def _keep_program(self, key: tuple[Any, ...], program: Program) -> Program:
        if len(self._programs) >= PROGRAMS:
            self._programs.clear()
        self._programs[key] = program
        return program

    # The same for memory of an owner, which gives its bytes in the first call only; `at` is its
    # address. These lines are most of the cost of a small call.

    def allreduce_of(self, owner: Any, at: int, elements: int, dtype: str, reduction: str,
                     bytes_of: Callable[[Any], Bytes]) -> Future[None]:
        """Do as `allreduce`, densely."""
        key = (at, elements, dtype, reduction)
        return self._queue.begin(self._programs.get(key) or self._keep_program(
            key, self._allreduce_program(bytes_of(owner), dtype, reduction, None, None,
                                         sampled=False)), owner)

    def broadcast_of(self, owner: Any, at: int, nbytes: int, dtype: str, root: int,
                     bytes_of: Callable[[Any], Bytes]) -> Future[None]:
        """Do as `broadcast`."""
        key = (at, nbytes, "broadcast", root, dtype)
        return self._queue.begin(self._programs.get(key) or self._keep_program(
            key, self._broadcast_program(bytes_of(owner), root, dtype)), owner)

    @property
    def settings(self) -> LightSettings:
        """The LIGHT_* variables; a change holds for the calls that are made afterwards."""
        return self._settings

    @settings.setter
    def settings(self, settings: LightSettings) -> None:
        self._settings = settings
        self._programs.clear()
        self._few_bits.clear()

    def exchange(self, call: str, outs: Sequence[Bytes], ins: Sequence[Bytes],
                 data: Sequence[Bytes] | None = None) -> Future[None]:
        """Send ``outs[i]`` to rank i and receive ``ins[i]`` from it, for all ranks at once.

        The sizes may all differ, so that only ``call`` is what ranks agree upon. ``data`` is all
        the memory that the call and its callbacks work on, if known: calls on other memory may be
        under way beside it.
        """
        places = [(address(one), len(one)) for one in (*outs, *ins, *(data or ()))]
        return self._repeat_call((call, *places), (outs, ins, data),
                                 lambda: self._exchange_program(call, outs, ins, data))

    def _exchange_program(self, call: str, outs: Sequence[Bytes], ins: Sequence[Bytes],
                          data: Sequence[Bytes] | None = None) -> Program:
        later = [(self.rank + i) % self.ranks for i in range(1, self.ranks)]
        rows = list(in_turn([cut(SEND, peer, outs[peer]) for peer in later],
                            [cut(PLACE, peer, ins[peer]) for peer in reversed(later)]))
        own, room = outs[self.rank], ins[self.rank]
        if len(own) != len(room):
            raise ValueError(f"a rank's part for itself has {len(own)} B, and its place "
                             f"{len(room)} B")
        return Program(call, table(rows), self.rank, self.ranks, same_sizes=False, data=data,
                       finish=partial(move, address(room), address(own), len(own)))

    def alltoallv(self, call: str, data: Bytes, out: Bytes, sends: Sequence[int],
                  expects: Sequence[int]) -> Future[None]:
        """Send rank i the next ``sends[i]`` bytes of data, and receive ``expects[i]`` from it.

        Ranks first exchange these, so that counts that disagree fail the group with one sentence,
        and choose the way of all of it by them (`harp.collectives.choice`).
        """
        counts = Counts(self.rank, sends, expects)
        rows = counts.rows
        self._queue.begin(self._exchange_program(f"{call}, counts", [rows[self.rank]] * self.ranks,
                                                 rows), rows)
        return self._queue.begin(program_of_counts(call, counts, self.rank, self.host_numbers, data,
                                                   out), (data, out))

    def run_blocks(self, plan: Plan, data: Bytes, out: Bytes, dtype: str) -> Future[None]:
        """Run a plan of `harp.collectives.alltoallv`, the same at all ranks, on a rank's blocks."""
        return self._queue.begin(program_of(plan, self.rank, data, out, dtype), (data, out))

    @cached_property
    def host_numbers(self) -> tuple[int, ...]:
        """The number of each rank's host."""
        places = list(dict.fromkeys(self.places))
        return tuple(places.index(place) for place in self.places)

    def barrier(self) -> Future[None]:
        """Be done when all ranks have come here."""
        return self._repeat_call(("barrier",), None, self._barrier_program)

    def _barrier_program(self) -> Program:
        made = plan_pieces("recursive-doubling", self.ranks, self.rank, 1, 1)
        work = ffi.new("struct harp_piece_work *", {"reduce": combination("uint8", "max")})
        return Program("barrier", made.on(self._token, self._token), self.rank, self.ranks, work,
                       inline_descriptor=True)

    def _choose_algorithm(self, nbytes: int, *, sparse: bool) -> tuple[str, dict[str, Any]]:
        path = allreduce_path(self.settings, self.ranks, nbytes, sparse=sparse,
                              tuning=self._tuning, hosts=self._peers.hosts)
        return path.plan, dict(path.parameters)

    def _own_part(self, data: Bytes) -> slice:
        if len(data) % self.ranks:
            raise ValueError(f"{len(data)} B have no {self.ranks} equal parts")
        part = len(data) // self.ranks
        return slice(self.rank * part, (self.rank + 1) * part)

    # ---- One call after the other ----

    def waiting(self) -> Waiter:
        """Run the calls made in this context in this thread, if the queue is empty.

        For a caller that waits for its call at once: this saves two thread switches.
        """
        return self._queue.waiter

    # ---- The end ----

    def when_over(self, tell: Callable[[str | None], None]) -> None:
        """Call ``tell`` with the sentence of the failure, or with None when the group is closed.

        In the group's thread, which it must not block; at once if the group has failed.
        """
        async def listen() -> None:
            self._failure.add_listener(tell)
        self._on_loop(listen()).result()

    def fail(self, why: str, *, is_symptom: bool = False) -> None:
        """Fail the group at all ranks, by ``why`` or by the reason behind a symptom."""
        with contextlib.suppress(RuntimeError):  # it is closed
            self._failure.report_soon(why, SYMPTOM if is_symptom else FAILED)

    def attempt(self, what: str, step: Callable[[], None]) -> GroupError | None:
        """Take a step between two calls; where it fails so does the group, before the second.

        For callbacks of calls, whose errors nobody else would see. Gives the failure.
        """
        try:
            step()
        except Exception as error:  # whatever it is, all ranks must hear of it
            return GroupError(self._queue.fail(f"rank {self.rank} could not {what}: "
                                               f"{type(error).__name__}: {error}"))
        return None

    def abort(self, why: str = "the group was aborted") -> None:
        """Fail the group at all ranks."""
        self._failure.report_soon(f"{why} by rank {self.rank}")

    def close(self) -> None:
        """Leave the group. Calls that are not over fail here; other ranks go on."""
        with _listing:
            _groups.discard(self)
        if self._loop.is_closed() or os.getpid() != self._process:
            return  # a child of fork has no thread of the group
        if self._mover:
            with contextlib.suppress(Exception):
                self._on_loop(self._end_calls("the group is closed")).result()
            self._queue.close()
            self._mover.flush(LEAVE_S)
        with contextlib.suppress(Exception):
            self._on_loop(self._close_connections()).result(LEAVE_S + 5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def forked(self) -> None:
        """Fail the calls of a child of fork, which has no thread of the group."""
        self._failure.sentence = FORKED
        self._queue.forked()

    async def _end_calls(self, why: str) -> None:
        await self._failure.flush()
        self._failure.settle(why, is_failure=False)

    async def _close_connections(self) -> None:
        if self._mover:
            await self._failure.close()
            await self._p2p.close()
        await self._peers.flush(LEAVE_S)
        self._peers.close()

    # ---- Messages between two ranks ----

    def send(self, data: Bytes, peer: int, tag: int = 0) -> Future[None]:
        """Send a message; the future is done when ``data`` may change."""
        self._check_peer("receiver", peer)
        return self._on_loop(self._send_message(data, peer, tag))

    def receive(self, data: Bytes, peer: int | None, tag: int = 0) -> Future[int]:
        """Receive the next message of a tag from ``peer``, or from any; gives the peer."""
        if peer is not None:
            self._check_peer("sender", peer)
        return self._on_loop(self._receive_message(data, peer, tag))

    def _check_peer(self, what: str, peer: int) -> None:
        self.check_rank(f"{what} of a message", peer)
        if peer == self.rank:
            raise ValueError(f"the {what} of a message is rank {peer} itself: another rank is "
                             "possible")

    def message(self, peer: int, tag: int) -> Future[Bytes]:
        """Give the next message of a tag from ``peer``, of whatever size, whenever it comes."""
        return self._on_loop(self._take_message(peer, tag))

    async def _take_message(self, peer: int, tag: int) -> Bytes:
        if self._failure.sentence is not None:
            raise GroupError(self._failure.sentence)
        return (await self._p2p.receive(peer, tag))[1]

    async def _send_message(self, data: Bytes, peer: int, tag: int) -> None:
        """Send; a message that is late fails the group, since half of it may be under way."""
        if self._failure.sentence is not None:
            raise GroupError(self._failure.sentence)
        writing = asyncio.ensure_future(self._p2p.write(peer, DATA, tag, data))
        if not (await asyncio.wait([writing], timeout=self.timeout_s))[0]:
            writing.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise GroupError(await self._failure.decide(
                f"a message from rank {self.rank} to rank {peer} was not over after "
                f"{self.timeout_s:g} s", FAILED))
        writing.result()

    async def _receive_message(self, data: Bytes, peer: int | None, tag: int) -> int:
        if self._failure.sentence is not None:
            raise GroupError(self._failure.sentence)
        try:
            source, came = await asyncio.wait_for(self._p2p.receive(peer, tag), self.timeout_s)
        except asyncio.TimeoutError:
            whom = "any rank" if peer is None else f"rank {peer}"
            raise GroupError(f"no message with tag {tag} came from {whom} to rank {self.rank} "
                             f"within {self.timeout_s:g} s") from None
        if len(came) != len(data):
            raise GroupError(f"rank {source} sent {len(came)} B with tag {tag}, and rank "
                             f"{self.rank} receives {len(data)} B")
        data[:] = came
        return source
