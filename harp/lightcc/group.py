"""A group of ranks and its collectives on host memory, over HARP connections.

A collective runs the plan of `harp.collectives` that `harp.lightcc.settings` chooses; the simulator
runs the same plan. A thread of the group carries out its calls one after the other, in the order in
which they are made, by C (`harp.lightcc.mover`): every rank must make the same calls in the same
order. Messages between two ranks go beside them, by another thread.

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
import queue
import threading
import weakref
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from harp._cnet import ffi
from harp.lightcc.elements import combination, divide, element_type
from harp.lightcc.letters import MESSAGE, Letters
from harp.lightcc.mover import EXPECT_BYTES, CancelledError, DiffersError, LateError, Mover
from harp.lightcc.peers import GroupError, Peers
from harp.lightcc.pieces import (
    EXPECT,
    PLACE,
    SEND,
    address,
    cut,
    plan_pieces,
    settle,
    table,
)
from harp.lightcc.settings import INDEX_BYTES, LightSettings
from harp.lightcc.verdict import FAILED, LATE, TELL_S, Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from numpy.typing import NDArray

    from harp.lightcc.peers import Store

    Bytes = NDArray[np.uint8]


@dataclass(eq=False)
class _Call:
    """A collective that waits for its turn."""

    what: str
    """What ranks must agree upon, for people."""
    pieces: NDArray[np.void]
    memory: Any
    """What the pieces point to, kept."""
    future: Future[None]
    work: Any = ffi.NULL
    """``struct harp_piece_work *``"""
    finish: Callable[[], None] | None = None
    """What is left to do when the pieces are there."""


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
        self.timeout_s = timeout_s
        self._process = os.getpid()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._made = 0
        self._mover: Mover | None = None
        self._server: threading.Thread | None = None
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
        self._mover = Mover(self._peers.engines, self._peers.pieces, self.ranks)
        self._server = threading.Thread(target=self._serve_calls, args=(self._mover,), daemon=True,
                                        name=f"lightcc {self.rank} calls")
        self._server.start()

    # ---- Collectives ----

    def allreduce(self, data: Bytes, dtype: str, reduction: str = "sum",
                  error: Bytes | None = None) -> Future[None]:
        """Reduce all ranks' ``data``; the result replaces it at every rank.

        With ``error``, memory of `error_bytes` that was zero when it was first given, sums and
        averages are sparse where the settings say so: what is not sent is added the next time.
        """
        name, parameters = self._algorithm(len(data), sparse=error is not None and len(error) > 0)
        return self._reduction("allreduce", name, data, dtype, reduction, parameters,
                               slice(None), error)

    def error_bytes(self, nbytes: int, dtype: str) -> int:
        """Bytes of the error of an allreduce of so many bytes; 0 where it is not sparse."""
        if dtype != "float32":
            return 0
        name, parameters = self._algorithm(nbytes, sparse=True)
        return plan_pieces(name, self.ranks, self.rank, nbytes, 4, **parameters).error_bytes

    def reduce_scatter(self, data: Bytes, dtype: str, reduction: str = "sum") -> Future[None]:
        """Reduce all ranks' ``data``; of its equal parts a rank's own one is the result."""
        own = self._own_part(data)
        return self._reduction("reduce_scatter", "reduce-scatter", data, dtype, reduction, {}, own)

    def _reduction(self, call: str, plan_name: str, data: Bytes, dtype: str, reduction: str,
                   parameters: dict[str, Any], own: slice,
                   error: Bytes | None = None) -> Future[None]:
        unit = element_type(dtype).itemsize
        made = plan_pieces(plan_name, self.ranks, self.rank, len(data), unit, **parameters)
        if made.error_bytes and (dtype != "float32" or reduction not in {"sum", "avg"}
                                 or error is None or len(error) != made.error_bytes):
            raise ValueError(f"{plan_name} is for sums and averages of float32, with an error of "
                             f"{made.error_bytes} B")
        pairs = np.empty(made.pairs_bytes, np.uint8)
        work = ffi.new("struct harp_piece_work *", {
            "reduce": combination(dtype, reduction),
            "error": ffi.cast("float *", address(error)) if error is not None else ffi.NULL,
            "pair_bytes": INDEX_BYTES + parameters.get("value_bytes", 4)})
        finish = (lambda: divide(data[own], dtype, self.ranks)) if reduction == "avg" else None
        return self._begin(_Call(
            f"{call} of {len(data) // unit} {dtype}, {reduction}, by {plan_name}",
            made.on(data, pairs), (data, pairs, error), Future(), work, finish))

    def allgather(self, data: Bytes) -> Future[None]:
        """Give every rank all equal parts of ``data``, of which it has its own one."""
        self._own_part(data)
        return self._copying("allgather", "allgather", data)

    def broadcast(self, data: Bytes, root: int) -> Future[None]:
        """Give every rank the ``data`` of ``root``."""
        return self._copying("broadcast", "broadcast", data, root=root)

    def _copying(self, call: str, plan_name: str, data: Bytes, **parameters: int) -> Future[None]:
        made = plan_pieces(plan_name, self.ranks, self.rank, len(data), 1, **parameters)
        said = "".join(f", {name} {value}" for name, value in parameters.items())
        return self._begin(_Call(f"{call} of {len(data)} B{said}", made.on(data, data), data,
                                 Future()))

    def exchange(self, call: str, outs: Sequence[Bytes], ins: Sequence[Bytes]) -> Future[None]:
        """Send ``outs[i]`` to rank i and receive ``ins[i]`` from it, for all ranks at once.

        The sizes may all differ, so that only ``call`` is what ranks agree upon.
        """
        rows = [row for i in range(1, self.ranks)
                for peer, kind, data in (
                    ((self.rank + i) % self.ranks, SEND, outs[(self.rank + i) % self.ranks]),
                    ((self.rank - i) % self.ranks, PLACE, ins[(self.rank - i) % self.ranks]))
                for row in cut(kind, peer, data)]

        def finish() -> None:
            ins[self.rank][:] = outs[self.rank]
        return self._begin(_Call(call, table(rows), (outs, ins), Future(), finish=finish))

    def barrier(self) -> Future[None]:
        """Be done when all ranks have come here."""
        bytes_ = np.zeros(2, np.uint8)
        out, into = address(bytes_), address(bytes_) + 1
        rows, far = [], 1
        while far < self.ranks:  # dissemination: Hensgen, Finkel and Manber, 1988
            rows += [(out, 0, 1, 0, SEND, (self.rank + far) % self.ranks),
                     (into, 0, 1, 0, PLACE, (self.rank - far) % self.ranks), settle()]
            far *= 2
        return self._begin(_Call("barrier", table(rows), bytes_, Future()))

    def _algorithm(self, nbytes: int, *, sparse: bool) -> tuple[str, dict[str, Any]]:
        settings = self.settings if sparse else replace(self.settings, topk=False)
        choice = settings.choose(nbytes)
        size = choice.intra_size
        groups = self.ranks % size == 0 and 1 < size < self.ranks
        parameters: dict[str, Any] = {"group": size} if groups else {}
        if choice.sparse:
            parameters |= {"ratio": float(choice.ratio), "value_bytes": 2 if choice.fp16 else 4}
            return "2d-topk" if groups else "topk", parameters
        return "2d" if choice.algorithm == "2d" and groups else "ring", parameters

    def _own_part(self, data: Bytes) -> slice:
        if len(data) % self.ranks:
            raise ValueError(f"{len(data)} B have no {self.ranks} equal parts")
        part = len(data) // self.ranks
        return slice(self.rank * part, (self.rank + 1) * part)

    # ---- One call after the other ----

    def _begin(self, call: _Call) -> Future[None]:
        self._calls.put(call)
        return call.future

    def _serve_calls(self, mover: Mover) -> None:
        for call in iter(self._calls.get, None):
            if self._verdict.sentence is not None:
                call.future.set_exception(GroupError(self._verdict.sentence))
                continue
            self._made += 1
            which = f"call {self._made}, {call.what}"
            try:
                self._run(mover, call)
            except LateError:
                self._fail(call, which, LATE)
            except CancelledError:
                self._fail(call, which, FAILED)
            except Exception as error:  # whatever it is, all ranks must hear of it
                self._fail(call, f"{which}: {error}", FAILED)
            else:
                call.future.set_result(None)

    def _run(self, mover: Mover, call: _Call) -> None:
        said = np.frombuffer(f"{self._made} {call.what}".encode()[:EXPECT_BYTES], np.uint8)
        pieces = call.pieces
        if self.ranks > 1:
            before, after = ((self.rank + far) % self.ranks for far in (-1, 1))
            told = [(address(said), 0, len(said), 0, kind, peer)
                    for kind, peer in ((SEND, after), (EXPECT, before))]
            pieces = np.concatenate([table(told), pieces])
        try:
            mover.run(pieces, call.work, self.timeout_s)
        except DiffersError as error:
            heard = error.heard.decode(errors="replace").split(" ", 1)[-1]
            both = sorted([(error.peer, heard), (self.rank, call.what)])
            raise GroupError("ranks do not agree: " + ", ".join(
                f"rank {rank} calls {what}" for rank, what in both)) from None
        if call.finish:
            call.finish()

    def _fail(self, call: _Call, why: str, kind: bytes) -> None:
        """Fail a call at all ranks, and end what may still use its memory."""
        sentence = self._on_loop(self._judged(why, kind)).result()
        self._peers.end_pieces()
        call.future.set_exception(GroupError(sentence))

    async def _judged(self, why: str, kind: bytes) -> str:
        self._verdict.find(why, kind)
        await self._verdict.known.wait()
        assert self._verdict.sentence is not None
        return self._verdict.sentence

    # ---- The end ----

    def _end_all(self, why: str) -> None:
        """End what is under way; calls that wait end when it is their turn."""
        if self._mover:
            self._mover.cancel()
        self._letters.end(why)

    def abort(self, why: str = "the group was aborted") -> None:
        """Fail the group at all ranks."""
        self._loop.call_soon_threadsafe(self._verdict.find, f"{why} by rank {self.rank}")

    def close(self) -> None:
        """Leave the group. What was begun and is not over fails here; other ranks go on."""
        if self._loop.is_closed() or os.getpid() != self._process:
            return  # a child of fork has no thread of the group
        if self._server and self._mover:
            with contextlib.suppress(Exception):
                self._on_loop(self._settle("the group is closed")).result()
            self._calls.put(None)
            self._server.join()
            self._mover.flush(TELL_S)
        with contextlib.suppress(Exception):
            self._on_loop(self._shut()).result(TELL_S + 5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _settle(self, why: str) -> None:
        self._verdict.settle(why)

    async def _shut(self) -> None:
        if self._server:
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
