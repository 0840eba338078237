"""A connection to one other end: messages in both directions, complete and in order."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from harp._cnet import ffi, lib
from harp.net.aio import clear
from harp.net.completion import Completion
from harp.net.errors import Closed, EndedError, Timeout, ended
from harp.net.frames import Draft, Lent, Stream
from harp.net.guard import Guard
from harp.net.handle import address_text
from harp.net.info import ConnectionInfo, PathInfo, fields
from harp.net.memory import Buffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from harp.net.engine import Engine

MESSAGES: int = lib.HARP_MESSAGES
"""Most messages in flight in each direction."""
MESSAGE_MAX: int = lib.HARP_MESSAGE_MAX
"""Bytes of the longest message."""
_BATCH = 64
_uncleared = ffi.new_allocator(should_clear_after_alloc=False)


class Connection:
    """A connection to one other end. Made by :meth:`Engine.connect` and :meth:`Listener.accept`.

    Messages of up to 1 GiB arrive complete and in the order sent, in both directions at once.
    Up to 256 may be in flight in each direction; more wait.

    The receiving end chooses: messages come into buffers that it posts (:meth:`post`,
    :meth:`recv_into`, :meth:`recv`), or, if it was made with ``streamed=frames``, frame by frame
    (:meth:`stream`).

    It ends by :meth:`close`, when its context ends, and when nothing refers to it any more.

    One thread at a time may use a connection; another one gets an error. When it is over, all calls
    that wait, and all later calls, raise an EndedError with the reason.
    """

    def __init__(self, engine: Engine, connection: Any, streamed: int, drafts: int) -> None:
        self._guard = Guard("connection")
        self._engine = engine
        self._connection = connection
        self._streamed, self._drafts_most = streamed, drafts
        self._planned: Any = ffi.NULL
        self._error: EndedError | None = None
        self._next_context = 1
        self._open: dict[int, Completion] = {}
        self._polled = ffi.new("struct harp_completion[]", _BATCH)
        self._buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self._returns: deque[int] = deque()
        self._return_lock = threading.Lock()
        self._drafts: deque[int] = deque()
        self._chunks: dict[int, deque[tuple[int, int, int, int]]] = {}
        self._finished: dict[int, int] = {}
        self._stream_next = 0
        self._late: Completion | None = None  # of a recv that timed out
        self._waiters: list[asyncio.Future[None]] = []
        self.connected = Completion(self, "connecting")
        """Is done when the other end has answered."""

    # ---- Completions from C ----

    def _poll(self) -> None:
        while count := lib.harp_poll(self._connection, self._polled, _BATCH):
            for i in range(count):
                self._take(self._polled[i])

    def _take(self, done: Any) -> None:
        if done.type == lib.HARP_COMPLETION_CHUNK:
            if done.message < self._stream_next - 1:
                self._give_back(done.frame)  # of a message that the application does not read
            else:
                self._chunks.setdefault(done.message, deque()).append(
                    (int(ffi.cast("uintptr_t", done.bytes)), done.size, done.offset, done.frame))
        elif done.type == lib.HARP_COMPLETION_CONNECTED:
            self.connected.settle(0)
        elif done.type == lib.HARP_COMPLETION_CLOSED:
            self._end(ended(done.reason, self._why()), done.size)
        elif done.context in self._open:
            completion = self._open.pop(done.context)
            completion.message = done.message
            completion.settle(done.size)
        elif (done.type == lib.HARP_COMPLETION_RECEIVED and self._streamed
              and done.message >= self._stream_next - 1):  # else the application has left it
            self._finished[done.message] = done.size

    def _why(self) -> str:
        why = ffi.new("char[]", lib.HARP_WHY_BYTES)
        lib.harp_connection_why(self._connection, why)
        return str(ffi.string(why).decode(errors="replace"))

    def _end(self, error: EndedError, left: int = 0) -> None:
        """End all that is open but buffers for the ``left`` messages that came before."""
        self._error = error
        receives = [context for context, completion in self._open.items()
                    if completion.kind == "receiving"][:left]
        waiting = [self.connected, *(completion for context, completion in self._open.items()
                                     if context not in receives)]
        self._open = {context: self._open[context] for context in receives}
        for completion in waiting:
            if not completion.settled:
                completion.settle(None, error)
        for there in self._waiters:
            if not there.done():
                there.set_result(None)

    def _until(self, ready: Callable[[], bool], timeout: float | None, what: str) -> None:
        self._guard.until(lambda: self._is(ready),
                          lambda ns: lib.harp_connection_wait(self._connection, ns), timeout, what)

    def _is(self, ready: Callable[[], bool]) -> bool:
        self._poll()
        if ready():
            return True
        if self._error is not None and not self._open:
            raise self._error
        return False

    def poll(self, completion: Completion) -> bool:
        """Take what C reports; say whether the completion is over. Its `done` calls this."""
        with self._guard:
            self._poll()
        return completion.settled

    def wait_for(self, completion: Completion, timeout: float | None) -> None:
        """Wait until the completion is over. Its `wait` calls this."""
        with self._guard:
            self._until(lambda: completion.settled, timeout, completion.kind)

    async def wait_for_async(self, completion: Completion) -> None:
        """Wait in asyncio until the completion is over; ``await completion`` calls this."""
        await self._until_async(lambda: completion.settled)

    # ---- Sending ----

    def send(self, data: Any, timeout: float | None = None) -> Completion:
        """Begin to send a message; done when the other end has all of it.

        ``data`` is anything with a contiguous buffer (bytes, a numpy array, a Buffer), which must
        not change until then, or a :class:`Draft`. Waits only while 256 messages are in flight, for
        ``timeout`` seconds at most. Raises Timeout and EndedError.
        """
        with self._guard:
            if isinstance(data, Draft):
                return self._send_draft(data, timeout)
            view = ffi.from_buffer(data)
            size = len(view)
            if size > MESSAGE_MAX:
                raise ValueError(f"a message has at most {MESSAGE_MAX} bytes (1 GiB), not {size}")
            return self._begin("sending", view, lambda context: lib.harp_send(
                self._connection, view, size, context), timeout)

    def _send_draft(self, draft: Draft, timeout: float | None) -> Completion:
        frames = draft._take(self)
        try:
            given = ffi.new("uint32_t[]", frames)
            return self._begin("sending", None, lambda context: lib.harp_send_frames(
                self._connection, given, draft.size, context), timeout)
        except (Timeout, EndedError):
            self._drafts.extend(frames)
            raise

    def _begin(self, what: str, memory: Any, begin: Callable[[int], bool],
               timeout: float | None) -> Completion:
        completion = Completion(self, what, memory)
        context = self._next_context
        self._next_context += 1
        self._open[context] = completion  # at once: a completion may come before we are back
        begun = begin(context)

        def begins() -> bool:  # after the end, too, where a message is left for a buffer
            nonlocal begun
            begun = begin(context)
            return begun or self._error is not None
        try:
            if not begun:
                self._until(begins, timeout, what)
            if not begun:
                assert self._error is not None
                raise self._error
        except (Timeout, EndedError):  # Ctrl-C leaves it: it may have begun
            self._open.pop(context, None)
            raise
        return completion

    async def send_async(self, data: Any) -> int:
        """Send a message; over when the other end has all of it. Returns its size in bytes."""
        await self._until_async(lambda: self.connected.settled and self._sending() < MESSAGES)
        return await self.send(data, 0)

    def _sending(self) -> int:
        return sum(completion.kind == "sending" for completion in self._open.values())

    def draft(self, size: int, timeout: float | None = None) -> Draft:
        """Take frames to write a message of ``size`` bytes into, from which it is sent in place.

        The connection must have been made with ``drafts=frames``. Waits for frames that are still
        in flight, ``timeout`` seconds at most.
        """
        with self._guard:
            if not self._drafts_most:
                raise ValueError("this connection has no drafts: make it with drafts=frames")
            self._until(lambda: self.connected.settled, timeout, "connecting")
            segment = int(lib.harp_segment(self._connection))
            count = -(-size // segment)
            if size < 0 or count > self._drafts_most:
                raise ValueError(f"a draft of {size} bytes takes {count} frames of {segment}; this "
                                 f"connection was made with drafts={self._drafts_most}")
            self._until(lambda: self._draw(count), timeout, "a frame to write into")
            return Draft(self, [self._drafts.popleft() for _ in range(count)], size, segment)

    def _draw(self, count: int) -> bool:
        need = count - len(self._drafts)
        if need > 0:
            frames = ffi.new("uint32_t[]", need)
            got = lib.harp_drafts(self._connection, frames, need)
            self._drafts.extend(frames[0:got])
        return len(self._drafts) >= count

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the other end has all that was sent. Raises Timeout and EndedError."""
        with self._guard:
            self._until(lambda: not self._sending(), timeout,
                        "sending")

    # ---- Receiving into posted buffers ----

    def post(self, buffer: Any, timeout: float | None = None) -> Completion:
        """Hand over a writable buffer for the next message; done when all of it is there.

        Messages fill buffers in the order in which these are posted. A message that is longer than
        its buffer ends the connection. Waits only while 256 are posted.
        """
        with self._guard:
            return self._post(ffi.from_buffer(buffer, require_writable=True), timeout)

    def _post(self, view: Any, timeout: float | None) -> Completion:
        if self._streamed:
            raise TypeError("this connection is streamed: read its messages by stream()")
        if self._late is not None:
            raise Timeout("the buffer of a receive that timed out waits for the next message still:"
                          " repeat that call first")
        size = min(len(view), MESSAGE_MAX)
        return self._begin("receiving", view, lambda context: lib.harp_receive(
            self._connection, view, size, context), timeout)

    def recv_into(self, buffer: Any, timeout: float | None = None) -> int:
        """Receive the next message into a writable buffer; return its size in bytes.

        After Timeout the buffer still waits for the message: call again with the same one.
        """
        with self._guard:
            view = ffi.from_buffer(buffer, require_writable=True)
            return self._receive(view, timeout).result()

    def recv(self, capacity: int = 1 << 20, timeout: float | None = None) -> Buffer:
        """Receive the next message, of ``capacity`` bytes at most, into new memory.

        Post buffers ahead where speed counts. After Timeout call again with the same capacity.
        """
        with self._guard:
            late = self._late
            view = (late.memory if late is not None and len(late.memory) == capacity
                    else _uncleared("uint8_t[]", capacity))
            done = self._receive(view, timeout)
            return Buffer(int(ffi.cast("uintptr_t", view)), done.result(), False, view,
                          done.message)

    def _receive(self, view: Any, timeout: float | None) -> Completion:
        late = self._late
        if late is not None and late.memory == view and len(late.memory) == len(view):
            self._late = None
        else:
            late = self._post(view, timeout)
        try:
            self._until(lambda: late.settled, timeout, "receiving")
        except Timeout:
            self._late = late
            raise
        return late

    async def recv_async(self, capacity: int = 1 << 20) -> Buffer:
        """Like :meth:`recv`, without keeping the event loop from its work."""
        view = _uncleared("uint8_t[]", capacity)
        with self._guard:
            posted = self._post(view, 0)
        size = await posted
        return Buffer(int(ffi.cast("uintptr_t", view)), size, False, view, posted.message)

    # ---- Receiving frame by frame ----

    def stream(self, timeout: float | None = None) -> Stream:
        """Read the next message frame by frame, where the frames arrived, without a copy.

        The connection must have been made with ``streamed=frames``. ``timeout`` is that of each
        step, in seconds.
        """
        with self._guard:
            if not self._streamed:
                raise TypeError("this connection is not streamed: make it with streamed=frames")
            if self._stream_next:
                self._drop(self._stream_next - 1)
            self._stream_next += 1
            return Stream(self, self._stream_next - 1, timeout)

    def _drop(self, message: int) -> None:
        for *_, frame in self._chunks.pop(message, ()):
            self._give_back(frame)
        self._finished.pop(message, None)

    def _next_chunk(self, stream: Stream) -> Buffer | None:
        message = stream.message
        if message != self._stream_next - 1:
            raise ValueError("a later message is being read already")
        self._until(lambda: self._has_chunk(message), stream.timeout, "receiving")
        return self._take_chunk(stream)

    async def _next_chunk_async(self, stream: Stream) -> Buffer | None:
        await self._until_async(lambda: self._has_chunk(stream.message))
        return self._take_chunk(stream)

    def _has_chunk(self, message: int) -> bool:
        return bool(self._chunks.get(message)) or message in self._finished

    def _take_chunk(self, stream: Stream) -> Buffer | None:
        chunks = self._chunks.get(stream.message)
        if not chunks:
            stream.size = self._finished[stream.message]
            return None
        address, size, offset, frame = chunks.popleft()
        made = Buffer(address, size, True, Lent(self, frame), stream.message,
                      offset)
        self._buffers.add(made)
        return made

    def _give_back(self, frame: int) -> None:
        """Return a lent frame; from any thread, also from within the collector."""
        self._returns.append(frame)
        while self._returns and self._return_lock.acquire(blocking=False):
            try:
                frames = [self._returns.popleft() for _ in range(len(self._returns))]
                if not self._guard.closed:
                    lib.harp_return(self._connection, ffi.new("uint32_t[]", frames), len(frames))
            finally:
                self._return_lock.release()

    # ---- asyncio ----

    def fileno(self) -> int:
        """Give a descriptor that becomes readable when something is over, after :meth:`arm`."""
        with self._guard:
            return int(lib.harp_connection_fd(self._connection))

    def arm(self) -> bool:
        """Ask for the descriptor to become readable; False if something is over already."""
        with self._guard:
            return bool(lib.harp_arm(self._connection))

    async def _until_async(self, ready: Callable[[], bool]) -> None:
        if self._engine.progress == "manual":
            raise ValueError("no one drives an engine with progress='manual' while asyncio waits")
        loop, fd = asyncio.get_running_loop(), self.fileno()
        while not self._ready_or_armed(ready):
            there: asyncio.Future[None] = loop.create_future()
            self._waiters.append(there)
            loop.add_reader(fd, self._wake, fd)
            try:
                await there
            finally:
                self._waiters.remove(there)
                if not self._waiters:
                    loop.remove_reader(fd)

    def _ready_or_armed(self, ready: Callable[[], bool]) -> bool:
        with self._guard:
            while not self._is(ready):
                if lib.harp_arm(self._connection):
                    return False
        return True

    def _wake(self, fd: int) -> None:
        clear(fd)
        for there in self._waiters:
            if not there.done():
                there.set_result(None)

    # ---- What is known, and the end ----

    @property
    def segment(self) -> int:
        """Bytes of payload of a full frame; 0 before it is connected."""
        with self._guard:
            self._poll()
            return int(lib.harp_segment(self._connection))

    @property
    def info(self) -> ConnectionInfo:
        """Its current state."""
        info = ffi.new("struct harp_connection_info *")
        with self._guard:
            lib.harp_connection_info(self._connection, info)
        return ConnectionInfo(info.id, address_text(info.peer), info.segment, info.paths,
                           fields(info.counters))

    @property
    def paths(self) -> list[PathInfo]:
        """The current state of its paths."""
        info = ffi.new("struct harp_path_info *")
        local, remote = ffi.new("struct harp_address *"), ffi.new("struct harp_address *")
        with self._guard:
            return [PathInfo(address_text(local[0]), address_text(remote[0]), fields(info[0]))
                    for path in range(64)
                    if lib.harp_connection_path(self._connection, path, info, local, remote)]

    def follow(self, flows: Sequence[tuple[str, str]]) -> int:
        """Go by another revision of the plan: as many flows as at first, in the same order.

        Paths leave by their UDP ports from now on, while messages are under way. Any thread may
        call it. Returns how many paths moved; a port that cannot be had is a RuntimeWarning, and
        its path stays.
        """
        if self._planned == ffi.NULL:
            raise ValueError("this connection was made without the flows of a plan")
        if len(flows) != len(self._planned):
            raise ValueError(f"{len(flows)} flows are no revision of a plan of "
                             f"{len(self._planned)}")
        self._planned, moved = self._engine._follow(self._planned, flows)
        return moved

    @property
    def c_connection(self) -> Any:
        """The ``struct harp_connection *``, for a C function that alone uses it from now on."""
        with self._guard:
            return self._connection

    def why(self) -> str:
        """Give the sentence that says why it ended; empty while it has not."""
        with self._guard:
            return self._why()

    @property
    def closed(self) -> bool:
        """Whether it is over, by whichever end."""
        return self._guard.closed or self._error is not None

    def close(self) -> None:
        """Close it and notify the other end. Messages in flight are given up: :meth:`flush` before.

        BufferError while views of its frames are in use: drop them first. A connection whose
        context is left ends without that, when the last of them is gone and nothing refers to it.
        """
        self._guard.close(self._shut)

    def _shut(self) -> None:
        buffers = list(self._buffers)
        views = sum(buffer.views for buffer in buffers)
        if views:
            raise BufferError(f"{views} views of frames of this connection are in use (numpy "
                              "arrays, tensors, memoryviews): drop them first")
        for buffer in buffers:
            buffer.release()
        with self._return_lock:
            self._engine._let_go(self._connection)
            self._guard.closed = True
        self._end(self._error or Closed("this end closed the connection"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.leave(self.close)

    def __del__(self) -> None:
        if hasattr(self, "connected"):
            self.close()

    def __repr__(self) -> str:
        return f"<Connection{' (closed)' if self.closed else ''} of {self._engine!r}>"
