"""A rank's thread that negotiates and runs the collectives of a set of ranks.

Callers give `Entry` objects in any order and go on. The thread sends its requests to rank 0; rank
0's thread collects those of all ranks, waits one cycle time for more, or until all callers wait for
their tensors, and sends its responses to all (`negotiation`). Every rank then makes the same calls
of its `harp.lightcc.group.Group` in the same order. A thread without work sleeps: there are no
messages without tensors.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from harp.lightcc.horovod.horovod_errors import (
    DuplicateNameError,
    HorovodInternalError,
    RequestError,
)
from harp.lightcc.horovod.negotiation import (
    WAIT,
    Codec,
    Coordinator,
    Request,
    Response,
)
from harp.lightcc.horovod.packing import Buffers, nbytes, pack, shares, split, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from harp.lightcc.group import Group
    from harp.lightcc.horovod.autotune import Tuner
    from harp.lightcc.horovod.horovod_settings import Settings
    from harp.lightcc.horovod.timeline import Timeline

    Bytes = NDArray[np.uint8]
    Errors = dict[str, NDArray[np.float32]]

REQUESTS, RESPONSES = 1, 2
"""Tags of messages."""
WORDS = ("join", "barrier")
"""Requests without a tensor."""
log = logging.getLogger("harp.horovod")


@dataclass(eq=False)
class Entry:
    """A tensor that this rank has requested."""

    request: Request
    data: Bytes
    """Its memory; the result replaces it, except for calls with ``make``."""
    finish: Callable[[Response], Any]
    """Returns the future's result when the call is over."""
    make: Callable[[int], Bytes] | None = None
    """Allocates a result with the given number of rows."""
    future: Future[Any] = field(default_factory=Future)


def _fail_entries(entries: Sequence[Entry | None], error: Exception) -> None:
    for entry in entries:
        if entry:
            entry.future.set_exception(error)


class Runtime:
    """Negotiates and runs the collectives that this rank requests of the ``group``.

    Args:
        group: used by this object only, and closed with it.
        settings: the HOROVOD_* variables.
        timeline: of rank 0.
        errors: by tensor, the values that top-k has not sent yet; the caller keeps them for
            the next group.
        tuner: chooses settings while it runs, at rank 0.

    """

    def __init__(self, group: Group, settings: Settings, timeline: Timeline, errors: Errors,
                 tuner: Tuner | None = None) -> None:
        self.group, self._settings, self._timeline = group, settings, timeline
        self._errors, self._tuner = errors, tuner
        self._cycle_s = settings.cycle_s
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._entries: dict[str, Entry] = {}
        self._names: set[str] = set()
        self._names_lock = threading.Lock()
        self._unsent: list[Request] = []
        self._is_awaited = False
        self._failed: Exception | None = None
        self._closed = False
        self._buffers = Buffers(settings.fusion_threshold_bytes)
        self._decide_s: float | None = None
        self._coordinator: Coordinator | None = None
        self._own_codec = Codec()
        self._peer_codecs = [Codec() for _ in range(group.ranks)]
        if group.rank == 0:
            self._coordinator = Coordinator(group.ranks, settings.fusion_threshold_bytes)
            for peer in range(1, group.ranks):
                self._await_message(peer, REQUESTS)
        else:
            self._await_message(0, RESPONSES)
        self._thread = threading.Thread(target=self._serve_inbox, daemon=True,
                                        name=f"horovod {group.rank}")
        self._thread.start()

    def enqueue(self, entries: Sequence[Entry]) -> None:
        """Ask for tensors; their futures are done when the calls are over. Any thread.

        Raises DuplicateNameError, and asks for none of them, where a name is under way.
        """
        with self._names_lock:
            taken = next((entry.request.name for entry in entries
                          if entry.request.name in self._names), None)
            if taken is not None:
                raise DuplicateNameError(taken)
            self._names.update(entry.request.name for entry in entries)
        self._inbox.put(partial(self._add_entries, entries))

    def hurry(self) -> None:
        """Note that the caller waits for its requests. Any thread."""
        self._inbox.put(self._add_wait)

    def close(self) -> None:
        """Leave. Requests that are not over fail."""
        self._inbox.put(self._stop_serving)
        self._thread.join()
        self.group.close()
        while not self._inbox.empty():  # calls that the group's end has ended
            self._inbox.get()()

    # ---- The thread ----

    def _serve_inbox(self) -> None:
        while not self._closed:
            self._serve_once()

    def _serve_once(self) -> None:
        try:
            with contextlib.suppress(queue.Empty):
                self._inbox.get(timeout=self._patience_s())()
                while not self._inbox.empty():
                    self._inbox.get()()
            self._send_requests()
            self._look_at_clock()
        except Exception as error:  # whatever it is, no caller may wait for ever
            self._fail_all(HorovodInternalError(str(error)))
            self.group.abort(str(error))

    def _patience_s(self) -> float | None:
        until = [] if self._decide_s is None else [self._decide_s]
        settings = self._settings
        if self._coordinator:
            for since, limit_s in ((self._coordinator.oldest_s(warned=False), settings.stall_s),
                                   (self._coordinator.oldest_s(), settings.stall_end_s)):
                if since is not None and limit_s:
                    until.append(since + limit_s)
        return max(0.0, min(until) - time.monotonic()) if until else None

    def _look_at_clock(self) -> None:
        if self._decide_s is not None and time.monotonic() >= self._decide_s:
            self._decide_calls()
        if self._coordinator is None:
            return
        unnamed = self._coordinator.oldest_s(warned=False)
        stall_s = self._settings.stall_s
        if unnamed is not None and stall_s and time.monotonic() >= unnamed + stall_s:
            for sentence in self._coordinator.stalled(time.monotonic() - stall_s):
                log.warning("after %g s %s", stall_s, sentence)
        oldest = self._coordinator.oldest_s()
        limit_s = self._settings.stall_end_s
        if oldest is not None and limit_s and time.monotonic() >= oldest + limit_s:
            why = (f"after {limit_s:g} s {self._coordinator.oldest()}; "
                   "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS ends the group then")
            self.group.fail(why)
            self._fail_all(HorovodInternalError(why))

    def _stop_serving(self) -> None:
        self._closed = True
        self._fail_all(HorovodInternalError("Horovod has been shut down at this rank"))

    def _fail_all(self, error: Exception) -> None:
        self._failed = self._failed or error
        entries = list(self._entries.values())
        self._entries.clear()
        self._free_names(entry.request.name for entry in entries)
        _fail_entries(entries, self._failed)

    # ---- Requests ----

    def _add_entries(self, entries: Sequence[Entry]) -> None:
        if self._failed:
            self._free_names(entry.request.name for entry in entries)
            _fail_entries(entries, self._failed)
            return
        for entry in entries:
            self._entries[entry.request.name] = entry
            self._unsent.append(entry.request)
            self._is_awaited = False

    def _free_names(self, names: Iterable[str]) -> None:
        """Let callers ask for these again."""
        with self._names_lock:
            self._names.difference_update(names)

    def _add_wait(self) -> None:
        if self._entries and not self._is_awaited:
            self._is_awaited = True
            self._unsent.append(WAIT)

    def _send_requests(self) -> None:
        """Send rank 0 the new requests, in one message."""
        requests, self._unsent = self._unsent, []
        if requests and self._coordinator:
            self._take_requests(0, requests)
        elif requests:
            self.group.send(self._own_codec.pack_requests(requests), 0, REQUESTS)

    def _await_message(self, peer: int, tag: int) -> None:
        def came(future: Future[Bytes]) -> None:
            self._inbox.put(partial(self._take_message, peer, tag, future))
        self.group.message(peer, tag).add_done_callback(came)

    def _take_message(self, peer: int, tag: int, future: Future[Bytes]) -> None:
        try:
            message = future.result()
        except (Exception, CancelledError) as error:
            self._take_leave(peer, str(error))
            return
        if self._closed:
            return  # the group that it came by has ended meanwhile
        self._await_message(peer, tag)
        if tag == REQUESTS:
            self._take_requests(peer, self._peer_codecs[peer].unpack_requests(message))
        else:
            self._run_calls(self._peer_codecs[peer].unpack_responses(message))

    def _take_leave(self, peer: int, why: str) -> None:
        if self._coordinator and self.group.failure is None:
            self._coordinator.leave(peer, why)
            self._plan_decision()
        else:
            self._fail_all(HorovodInternalError(self.group.failure or why))

    def _take_requests(self, rank: int, requests: Sequence[Request]) -> None:
        assert self._coordinator
        kinds = {request.name: request.kind for request in requests if request != WAIT}
        new = self._coordinator.hear(rank, requests, time.monotonic())
        self._timeline.negotiate({name: kinds[name] for name in new})
        self._timeline.rank_is_ready((name for name in kinds if kinds[name] != "join"), rank)
        self._plan_decision()

    def _plan_decision(self) -> None:
        assert self._coordinator
        if not self._coordinator.has_responses:
            return
        if not self._coordinator.expects_more:
            self._decide_s = time.monotonic()
        elif self._decide_s is None:
            self._decide_s = time.monotonic() + self._cycle_s

    def _decide_calls(self) -> None:
        assert self._coordinator
        self._decide_s = None
        self._timeline.cycle()
        responses = self._coordinator.decide()
        if self._tuner and (tuned := self._tuner.look(responses, time.monotonic())):
            responses.insert(0, Response((), tuned=tuned))
        message = self._own_codec.pack_responses(responses)
        for peer in range(1, self.group.ranks):
            self.group.send(message, peer, RESPONSES)
        for response in responses:
            self._timeline.decide(request.name for request in response.requests)
        self._run_calls(responses)

    # ---- Calls ----

    def _run_calls(self, responses: Sequence[Response]) -> None:
        """Run the calls that were decided, in order.

        A single call that the caller waits for runs in this thread, which has nothing else to do:
        this saves two thread switches. Of several calls, the next is prepared while one is under
        way.
        """
        here = self._is_awaited and len(responses) == 1
        with self.group.waiting() if here else contextlib.nullcontext():
            for response in responses:
                self._run_call(response)

    def _run_call(self, response: Response) -> None:
        if response.tuned:
            self._take_settings(response.tuned)
        if not response.requests:
            return
        entries = [self._entries.pop(request.name, None) for request in response.requests]
        self._free_names(request.name for request in response.requests)
        kind = response.requests[0].kind
        if response.error or kind not in WORDS:
            self._timeline.call([request.name for request in response.requests],
                                "error" if response.error else kind)
        if response.error:
            self._timeline.over({request.name: {} for request in response.requests})
            error = HorovodInternalError if response.gone else RequestError
            _fail_entries(entries, error(response.error))
            return
        try:
            getattr(self, f"_call_{kind}")(response, entries)
        except Exception as error:  # the group fails by it, and these are no longer its
            _fail_entries(entries, HorovodInternalError(str(error)))
            raise

    def _take_settings(self, tuned: dict[str, Any]) -> None:
        from harp.lightcc.horovod.autotune import apply

        self._cycle_s, threshold, self.group.settings = apply(tuned, self.group.settings)
        if self._coordinator:
            self._coordinator.threshold_bytes = threshold

    def _end_after(self, begun: Future[None] | None, response: Response,
                   entries: Sequence[Entry | None],
                   then: Callable[[], None] | None = None) -> None:
        """End a call in this thread, when ``begun`` is over."""
        if begun is None:
            self._end_call(None, response, entries, then)
            return
        begun.add_done_callback(lambda future: self._inbox.put(
            partial(self._end_call, future, response, entries, then)))

    def _end_call(self, future: Future[None] | None, response: Response,
                  entries: Sequence[Entry | None],
                  then: Callable[[], None] | None) -> None:
        good = False
        try:
            if future:
                future.result()
            if then:
                then()
            ended = [(entry, entry.finish(response)) for entry in entries if entry]
            good = True
        except Exception as error:
            _fail_entries(entries, HorovodInternalError(str(error)))
            return
        finally:
            if self._timeline.is_written and response.requests[0].kind not in WORDS:
                self._timeline.over({
                    request.name: self._describe_result(response, at) if good else {}
                    for at, request in enumerate(response.requests)})
        for entry, result in ended:
            entry.future.set_result(result)

    def _describe_result(self, response: Response, at: int) -> dict[str, str]:
        """Describe a result of a call, as Horovod's timeline does."""
        request, own = response.requests[at], self.group.rank
        rows = list(request.shape[:1])
        if request.kind == "allgather":
            rows = [sum(of_rank[at] for of_rank in response.rows)]
        elif request.kind == "alltoall":
            rows = [sum(splits[own] for splits in response.rows)]
        elif request.kind == "reducescatter":
            rows = [shares(rows[0], self.group.ranks)[own]]
        return {"dtype": request.dtype, "shape": str([*rows, *request.shape[1:]])}

    def _begin_activity(self, response: Response, what: str) -> None:
        self._timeline.activity([request.name for request in response.requests], what)

    def _call_join(self, response: Response, entries: Sequence[Entry | None]) -> None:
        self._end_after(None, response, entries)

    _call_barrier = _call_join  # the negotiation was the barrier

    def _call_broadcast(self, response: Response, entries: Sequence[Entry | None]) -> None:
        (entry,) = entries
        assert entry
        self._begin_activity(response, "LIGHTCC_BCAST")
        root = int(response.requests[0].detail.removeprefix("root "))
        self._end_after(self.group.broadcast(entry.data, root), response, entries)

    def _call_allgather(self, response: Response, entries: Sequence[Entry | None]) -> None:
        self._begin_activity(response, "ALLOCATE_OUTPUT")
        outputs = []
        for entry, rows in zip(entries, zip(*response.rows, strict=True), strict=True):
            assert entry
            assert entry.make
            outputs.append(split(entry.make(sum(rows)), rows))
        mine, of_ranks, then = entries[0].data if entries[0] else None, outputs[0], None
        if len(entries) > 1:
            mine, of_ranks, then = self._fuse_gather(response, entries, outputs)
        self._begin_activity(response, "LIGHTCC_ALLGATHER")
        assert mine is not None
        self._end_after(self.group.exchange(f"allgather of {response.requests[0].name}",
                                            [mine] * self.group.ranks, of_ranks),
                    response, entries, then)

    def _fuse_gather(self, response: Response, entries: Sequence[Entry | None],
                     outputs: Sequence[Sequence[Bytes]],
                     ) -> tuple[Bytes, list[Bytes], Callable[[], None]]:
        """Pack a group's parts; returns them, the places of all ranks' parts, and the unpacking."""
        self._begin_activity(response, "MEMCPY_IN_FUSION_BUFFER")
        targets = list(zip(*outputs, strict=True))
        sizes = [nbytes(parts) for parts in targets]
        own = sizes[self.group.rank]
        buffer = self._buffers.take(own + sum(sizes))
        mine, *of_ranks = split(buffer[:own + sum(sizes)], [own, *sizes])
        pack([entry.data for entry in entries if entry], mine)

        def copy_out() -> None:
            self._begin_activity(response, "MEMCPY_OUT_FUSION_BUFFER")
            for data, parts in zip(of_ranks, targets, strict=True):
                unpack(data, parts)
            self._buffers.give_back(buffer)
        return mine, of_ranks, copy_out

    def _call_alltoall(self, response: Response, entries: Sequence[Entry | None]) -> None:
        (entry,) = entries
        assert entry
        assert entry.make
        own = self.group.rank
        ins = [splits[own] for splits in response.rows]
        self._begin_activity(response, "ALLOCATE_OUTPUT")
        parts = split(entry.make(sum(ins)), ins)
        self._begin_activity(response, "LIGHTCC_ALLTOALL")
        self._end_after(self.group.exchange(f"alltoall of {response.requests[0].name}",
                                            split(entry.data, response.rows[own]), parts),
                    response, entries)

    def _call_reducescatter(self, response: Response, entries: Sequence[Entry | None]) -> None:
        first, ranks = response.requests[0], self.group.ranks
        then = None
        if len(entries) == 1 and entries[0] and first.shape[0] % ranks == 0:
            data = entries[0].data
        else:
            data, then = self._fuse_scatter(response, entries)
        self._begin_activity(response, "LIGHTCC_REDUCESCATTER")
        self._end_after(self.group.reduce_scatter(data, first.dtype, first.detail),
                        response, entries, then)

    def _fuse_scatter(self, response: Response, entries: Sequence[Entry | None],
                      ) -> tuple[Bytes, Callable[[], None]]:
        """Pack tensors by rank, with equal room for each; returns the buffer and the unpacking."""
        self._begin_activity(response, "MEMCPY_IN_FUSION_BUFFER")
        ranks = self.group.ranks
        of_ranks = list(zip(*(split(entry.data, shares(request.shape[0], ranks))
                              for entry, request in zip(entries, response.requests, strict=True)
                              if entry), strict=True))
        room = max(map(nbytes, of_ranks))
        buffer = self._buffers.take(room * ranks)
        chunks = [buffer[room * rank:room * (rank + 1)] for rank in range(ranks)]
        for chunk, parts in zip(chunks, of_ranks, strict=True):
            pack(parts, chunk)

        def copy_out() -> None:
            self._begin_activity(response, "MEMCPY_OUT_FUSION_BUFFER")
            unpack(chunks[self.group.rank], of_ranks[self.group.rank])
            self._buffers.give_back(buffer)
        return buffer[:room * ranks], copy_out

    # ---- Fused allreduces ----

    def _call_allreduce(self, response: Response, entries: Sequence[Entry | None]) -> None:
        first = response.requests[0]
        total = sum(request.nbytes for request in response.requests)
        left = self.group.error_bytes(total, first.dtype) if first.sparse else 0
        if len(entries) == 1 and entries[0] and not left:
            self._begin_activity(response, "LIGHTCC_ALLREDUCE")
            self._end_after(self.group.allreduce(entries[0].data, first.dtype, first.detail),
                            response, entries)
            return
        self._begin_activity(response, "MEMCPY_IN_FUSION_BUFFER")
        buffer = self._buffers.take(total)
        ends = np.cumsum([0, *(request.nbytes for request in response.requests)])
        parts = split(buffer[:total], [request.nbytes for request in response.requests])
        for part, entry in zip(parts, entries, strict=True):
            part[:] = entry.data if entry else 0
        error = self._add_errors(response, parts, left) if left else None
        self._begin_activity(response, f"LIGHTCC_{'SPARSE_' if left else ''}ALLREDUCE")

        def copy_out() -> None:
            self._begin_activity(response, "MEMCPY_OUT_FUSION_BUFFER")
            for part, entry in zip(parts, entries, strict=True):
                if entry:
                    entry.data[:] = part
            if error is not None:
                self._keep_errors(response, error, self.group.examined(total, first.dtype), ends)
            self._buffers.give_back(buffer)
        self._end_after(self.group.allreduce(buffer[:total], first.dtype, first.detail, error),
                        response, entries, copy_out)

    def _add_errors(self, response: Response, parts: Sequence[Bytes], left: int) -> Bytes:
        """Add the values not sent before to those sent now; return memory for the new rest.

        Buckets differ from step to step, and with them the part of each that a rank examines. So
        what is left is kept by tensor, and takes part in the sum as this rank's gradient does.
        """
        for request, part in zip(response.requests, parts, strict=True):
            kept = self._errors.get(request.name)
            if kept is None or kept.nbytes != request.nbytes:
                self._errors[request.name] = np.zeros(request.nbytes // 4, np.float32)
            else:
                part.view(np.float32)[:] += kept
                kept[:] = 0
        return np.zeros(left, np.uint8)

    def _keep_errors(self, response: Response, error: Bytes, of: slice, ends: NDArray[Any]) -> None:
        for request, start, end in zip(response.requests, ends[:-1], ends[1:], strict=True):
            first, last = max(start, of.start), min(end, of.stop)
            if first < last:
                kept = self._errors[request.name].view(np.uint8)
                kept[first - start:last - start] = error[first - of.start:last - of.start]
