"""A group of ranks and its collectives on host memory, over HARP connections.

A collective runs the plan of `harp.collectives` that `harp.lightcc.settings` chooses, by
`harp.collectives.execute`; the simulator runs the same plan. Calls of a group are carried out one
after the other, in the order in which they are made, by a thread of the group: every rank must make
the same calls in the same order. Messages between two ranks go beside them.

Each call begins with a description that goes to the next rank of the ring and is compared there, so
ranks that do not agree are told what each of them called, instead of waiting for one another. A
call that fails, for whatever reason, fails the group at all ranks with the same sentence: what had
been begun is lost, and a group must be made anew.

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
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from harp.collectives.execute import Execution
from harp.collectives.ir import Buffer
from harp.collectives.registry import make_plan
from harp.collectives.window import NCCL_WINDOW
from harp.lightcc.elements import combination, divide, element_type
from harp.lightcc.letters import MESSAGE, Letters
from harp.lightcc.peers import GroupError, Peers
from harp.lightcc.settings import LightSettings
from harp.lightcc.verdict import LATE, TELL_S, Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from numpy.typing import NDArray

    from harp.collectives.plan import Plan
    from harp.lightcc.peers import PeerChannel, Store

    Bytes = NDArray[np.uint8]

_NOT_OVER = "not over"


@dataclass(eq=False)
class _Call:
    """A collective that waits for its turn."""

    what: str
    """What ranks must agree upon, for people."""
    run: Callable[[], Awaitable[None]]
    future: Future[None]


_groups: weakref.WeakSet[Group] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for group in list(_groups):
        group.close()


class Group:
    """One rank of a group.

    Args:
        rank: its number, from 0.
        ranks: how many there are.
        store: by which they find each other, for this group alone (`harp.lightcc.peers`).
        timeout_s: after so many seconds a call that is not over fails the group.
        settings: the LIGHT_* variables; those of the environment by default.

    Raises what the network raises if the others cannot be reached in that time.
    """

    def __init__(self, rank: int, ranks: int, store: Store, timeout_s: float = 1800.0,
                 settings: LightSettings | None = None) -> None:
        self.rank, self.ranks = rank, ranks
        self.settings = settings or LightSettings.from_env(os.environ)
        if self.settings.topk:
            raise ValueError("LIGHT_TOPK_ALLREDUCE is set, and collectives on the host have no "
                             "top-k yet; unset it")
        self.timeout_s = timeout_s
        self._process = os.getpid()
        self._running: asyncio.Task[None] | None = None
        self._server: asyncio.Task[None] | None = None
        self._calls: asyncio.Queue[_Call] = asyncio.Queue()
        self._made = 0
        self._peers = Peers(rank, ranks, store, timeout_s)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True,
                                        name=f"lightcc {rank}")
        self._thread.start()
        try:
            self._on_loop(self._open()).result()
        except BaseException:
            self.close()
            raise
        _groups.add(self)

    def _on_loop(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(self) -> None:
        await self._peers.connect()
        self._verdict = Verdict(self.rank, self.ranks, self.timeout_s, self._end_all)
        self._letters = Letters(self._peers.letters, self._verdict.hear, self._verdict.find)
        self._verdict.letters = self._letters
        self._server = asyncio.ensure_future(self._serve_calls())

    # ---- Collectives ----

    def allreduce(self, data: Bytes, dtype: str, reduction: str = "sum") -> Future[None]:
        """Reduce all ranks' ``data``; the result replaces it at every rank."""
        name, parameters = self._algorithm(len(data))
        return self._reduction("allreduce", name, data, dtype, reduction, parameters,
                               slice(None))

    def reduce_scatter(self, data: Bytes, dtype: str, reduction: str = "sum") -> Future[None]:
        """Reduce all ranks' ``data``; of its equal parts a rank's own one is the result."""
        own = self._own_part(data)
        return self._reduction("reduce_scatter", "reduce-scatter", data, dtype, reduction, {}, own)

    def _reduction(self, call: str, plan_name: str, data: Bytes, dtype: str, reduction: str,
                   parameters: dict[str, int], own: slice) -> Future[None]:
        combine = combination(dtype, reduction)
        unit = element_type(dtype).itemsize
        plan = _plan(plan_name, self.ranks, len(data), unit, **parameters)

        async def run() -> None:
            await Execution(plan, self.rank, element_type(dtype), self._channel,
                            buffers={Buffer.DATA: data}, combine=combine).run()
            if reduction == "avg":
                divide(data[own], dtype, self.ranks)
        return self._begin(f"{call} of {len(data) // unit} {dtype}, {reduction}, by {plan_name}",
                           run)

    def allgather(self, data: Bytes) -> Future[None]:
        """Give every rank all equal parts of ``data``, of which it has its own one."""
        self._own_part(data)
        return self._copying("allgather", "allgather", data)

    def broadcast(self, data: Bytes, root: int) -> Future[None]:
        """Give every rank the ``data`` of ``root``."""
        return self._copying("broadcast", "broadcast", data, root=root)

    def _copying(self, call: str, plan_name: str, data: Bytes, **parameters: int) -> Future[None]:
        plan = _plan(plan_name, self.ranks, len(data), 1, **parameters)
        said = "".join(f", {name} {value}" for name, value in parameters.items())
        return self._begin(
            f"{call} of {len(data)} B{said}",
            Execution(plan, self.rank, np.uint8, self._channel, buffers={Buffer.DATA: data}).run)

    def exchange(self, call: str, outs: Sequence[Bytes], ins: Sequence[Bytes]) -> Future[None]:
        """Send ``outs[i]`` to rank i and receive ``ins[i]`` from it, for all ranks at once.

        The sizes may all differ, so that only ``call`` is what ranks agree upon.
        """
        async def run() -> None:
            ins[self.rank][:] = outs[self.rank]
            others = [(self.rank + i) % self.ranks for i in range(1, self.ranks)]
            await _all_of(*(self._send_pieces(peer, outs[peer]) for peer in others),
                          *(self._receive_pieces(peer, ins[peer]) for peer in others))
        return self._begin(call, run)

    def barrier(self) -> Future[None]:
        """Be done when all ranks have come here."""
        async def run() -> None:
            byte = np.zeros(1, np.uint8)
            far = 1
            while far < self.ranks:  # dissemination: Hensgen, Finkel and Manber, 1988
                await _all_of(self._channel((self.rank + far) % self.ranks).send(byte),
                              self._channel((self.rank - far) % self.ranks).receive(1))
                far *= 2
        return self._begin("barrier", run)

    def _algorithm(self, nbytes: int) -> tuple[str, dict[str, int]]:
        choice = self.settings.choose(nbytes)
        size = choice.intra_size
        if choice.algorithm == "2d" and self.ranks % size == 0 and 1 < size < self.ranks:
            return "2d", {"group": size}
        return "ring", {}

    def _own_part(self, data: Bytes) -> slice:
        if len(data) % self.ranks:
            raise ValueError(f"{len(data)} B have no {self.ranks} equal parts")
        part = len(data) // self.ranks
        return slice(self.rank * part, (self.rank + 1) * part)

    async def _send_pieces(self, peer: int, data: Bytes) -> None:
        for start in range(0, len(data), NCCL_WINDOW.slot_bytes):
            await self._channel(peer).send(data[start:start + NCCL_WINDOW.slot_bytes])

    async def _receive_pieces(self, peer: int, data: Bytes) -> None:
        for start in range(0, len(data), NCCL_WINDOW.slot_bytes):
            part = data[start:start + NCCL_WINDOW.slot_bytes]
            part[:] = await self._channel(peer).receive(len(part))

    def _channel(self, peer: int) -> PeerChannel:
        return self._peers.pieces[peer]

    # ---- One call after the other ----

    def _begin(self, what: str, run: Callable[[], Awaitable[None]]) -> Future[None]:
        call = _Call(what, run, Future())
        self._loop.call_soon_threadsafe(self._take_call, call)
        return call.future

    def _take_call(self, call: _Call) -> None:
        if self._verdict.sentence is not None:
            call.future.set_exception(GroupError(self._verdict.sentence))
        else:
            self._calls.put_nowait(call)

    async def _serve_calls(self) -> None:
        while self._verdict.sentence is None:
            call = await self._calls.get()
            self._made += 1
            self._running = asyncio.ensure_future(self._run(call))
            why = await self._outcome_of(self._running)
            if not why:
                call.future.set_result(None)
                continue
            which = f"call {self._made}, {call.what}"
            if why == _NOT_OVER:
                self._verdict.find(which, LATE)
            else:
                self._verdict.find(f"{which}: {why}")
            await self._verdict.known.wait()
            call.future.set_exception(GroupError(self._verdict.sentence))

    async def _outcome_of(self, running: asyncio.Task[None]) -> str:
        """Wait for a call's end; gives what it failed by, or nothing."""
        try:
            await asyncio.wait_for(running, self.timeout_s)
        except asyncio.TimeoutError:
            return _NOT_OVER
        except asyncio.CancelledError:
            if self._verdict.sentence is None:
                raise
            return self._verdict.sentence
        except Exception as error:  # whatever it is, all ranks must hear of it
            return str(error)
        return ""

    async def _run(self, call: _Call) -> None:
        if self.ranks > 1:
            await self._agree(call)
        await call.run()

    async def _agree(self, call: _Call) -> None:
        said = np.frombuffer(f"{self._made} {call.what}".encode(), np.uint8)
        before = (self.rank - 1) % self.ranks
        await self._channel((self.rank + 1) % self.ranks).send(said)
        heard = await self._channel(before).take()
        if bytes(heard) != bytes(said):
            both = sorted([(before, bytes(heard).decode(errors="replace").split(" ", 1)[-1]),
                           (self.rank, call.what)])
            raise GroupError("ranks do not agree: " + ", ".join(
                f"rank {rank} calls {what}" for rank, what in both))

    # ---- The end ----

    def _end_all(self, why: str) -> None:
        """End what is under way and what waits."""
        if self._running:
            self._running.cancel()
        self._letters.end(why)
        while not self._calls.empty():
            self._calls.get_nowait().future.set_exception(GroupError(why))

    def abort(self, why: str = "the group was aborted") -> None:
        """Fail the group at all ranks."""
        self._loop.call_soon_threadsafe(self._verdict.find, f"{why} by rank {self.rank}")

    def close(self) -> None:
        """Leave the group. What was begun and is not over fails here; other ranks go on."""
        if self._loop.is_closed() or os.getpid() != self._process:
            return  # a child of fork has no thread of the group
        with contextlib.suppress(Exception):
            self._on_loop(self._shut()).result(TELL_S + 5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _shut(self) -> None:
        if self._server:
            self._verdict.settle("the group is closed")
            await asyncio.sleep(0)  # who waits hears of it
            self._server.cancel()
            await asyncio.gather(self._server, return_exceptions=True)
            await self._verdict.close()
            await self._letters.close()
        await self._peers.flush(TELL_S)
        self._peers.close()

    # ---- Messages between two ranks ----

    def send(self, data: Bytes, peer: int, tag: int = 0) -> Future[None]:
        """Send a message; the future is done when ``data`` may change."""
        return self._on_loop(self._timed(lambda: self._letters.write(peer, MESSAGE, tag, data)))

    def receive(self, data: Bytes, peer: int | None, tag: int = 0) -> Future[int]:
        """Receive the next message of a tag from ``peer``, or from any; gives the peer."""
        return self._on_loop(self._timed(lambda: self._receive(data, peer, tag)))

    async def _timed(self, begin: Callable[[], Awaitable[Any]]) -> Any:
        if self._verdict.sentence is not None:
            raise GroupError(self._verdict.sentence)
        try:
            return await asyncio.wait_for(begin(), self.timeout_s)
        except asyncio.TimeoutError:
            raise GroupError(f"a message between two ranks was not over after {self.timeout_s:g} s"
                             ) from None

    async def _receive(self, data: Bytes, peer: int | None, tag: int) -> int:
        source, came = await self._letters.receive(peer, tag)
        if len(came) != len(data):
            raise GroupError(f"rank {source} sent {len(came)} B with tag {tag}, and rank "
                             f"{self.rank} receives {len(data)} B")
        data[:] = came
        return source


async def _all_of(*work: Awaitable[Any]) -> None:
    """Wait for all; the first error ends the others."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        for task in asyncio.as_completed(tasks):
            await task
    finally:
        for one in tasks:
            one.cancel()


@lru_cache(maxsize=256)
def _plan(name: str, ranks: int, nbytes: int, unit_bytes: int, **parameters: int) -> Plan:
    return make_plan(name, ranks=ranks, nbytes=nbytes, unit_bytes=unit_bytes, **parameters)
