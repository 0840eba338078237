"""An engine: memory, ports and connections that one core drives."""

from __future__ import annotations

import atexit
import contextlib
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harp._cnet import ffi, lib
from harp.net.aio import readable
from harp.net.connection import Connection
from harp.net.errors import OpenError
from harp.net.guard import Guard
from harp.net.handle import Handle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

CHECKSUMS = {"auto": 0, "on": 1, "off": 2}
PROGRESS = {"thread": 0, "inline": 1, "manual": 2}
KINDS = ("udp", "tcp", "mem", "xdp")
WHY_BYTES: int = lib.HARP_WHY_BYTES


@dataclass(frozen=True)
class Port:
    """A port, where an engine sends and receives; ``docs/use/python.md`` compares the kinds."""

    kind: str = "udp"
    """``udp`` or ``tcp`` sockets, ``mem`` (memory that processes of this host share) or ``xdp``
    (AF_XDP)."""
    interface: str | None = None
    """The network interface; udp and tcp find it by ``address``."""
    address: str | None = None
    """Own IP address, with ``:port`` if it is to be that one; the interface's first by default."""
    locals: int = 1
    """Own UDP ports, or source ports of tcp; paths with different ones take different routes
    through the network."""
    mtu: int = 0
    """Bytes of an IP packet; 0: the interface's."""
    queue: int = -1
    """xdp: the queue; -1: a free one."""
    copy_only: bool = False
    """xdp: do not try zero copy."""
    zero_copy_only: bool = False
    """xdp: an error where there is no zero copy."""
    busy_poll_us: int = 0
    """xdp: microseconds for which it does the driver's work when it has nothing else; 0: never."""
    ring_bytes: int = 0
    """mem: of each direction; 0: the default."""
    faults: str | None = None
    """Faults of outgoing frames, for tests: ``drop=1%,delay=1ms,seed=7``."""


@dataclass(frozen=True)
class ConnectionOptions:
    """Options of one end of a connection; each end chooses its own."""

    paths: int = 1
    """Paths through the network to use at once, 1 to 64; the lower of both ends counts."""
    streamed: int = 0
    """Frames to lend to the application at most; 0: messages arrive in buffers that it posts."""
    drafts: int = 0
    """Frames that the application may write messages into, to send them without a copy."""
    dead_after: float = 30.0
    """Seconds of silence after which the other end is gone; 1 at least."""
    read_early: bool = False
    """Somebody reads posted buffers before they are reported, so no bad byte may ever be there."""
    traffic_class: int = 0
    """TOS byte of IP packets in both directions, without ECN's bits; the connecting end sets it."""
    checksum: str = "auto"
    """tcp: a CRC32C of each payload, ``on`` or ``off``; ``auto``: where there are several paths, or
    the card does not check TCP's sums. Other ports always have it."""
    congestion: str = "swift"
    """Congestion control: ``swift`` or ``fixed``."""
    flows: Sequence[tuple[str, str]] = ()
    """Planned flows (``docs/use/planned-paths.md``): own address and UDP port, target's address and
    port. The paths from one NIC to one target take those between these two in turn; where there are
    none, or a port is taken, a RuntimeWarning says so, and paths are hashed."""


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close all that is neither waited for nor viewed; the end of the process frees the rest."""
    for engine in list(_engines):
        parts: list[Connection | Listener] = [*engine._connections, *engine._listeners]
        for part in parts:
            with contextlib.suppress(BufferError):
                if not part._guard.in_use:
                    part.close()
        if all(part._guard.closed for part in parts) and not engine._guard.in_use:
            engine.close()
    Guard.ended = True


class Engine:
    """Memory, ports and connections that one core drives; see ``cnet/engine/engine.h``.

    >>> with Engine("udp", address="127.0.0.1") as engine:
    ...     listener = engine.listen()
    ...     near = engine.connect(listener.handle)
    ...     far = listener.accept()
    ...     sent = near.send(b"hello")
    ...     bytes(far.recv())
    b'hello'

    ``port`` is a kind, whose options are the fields of :class:`Port`, or one Port or several.
    ``progress`` says who drives: a ``thread`` of its own (on ``cpu``, if given), ``inline`` the
    threads that wait for its connections (and a helper when they are silent for ``quiet_after``
    seconds), or ``manual``: :meth:`drive` and waiting only. ``frames`` of ``frame_bytes`` are its
    memory, on NUMA ``node``. ``dump`` is a file to which the last events are added when a
    connection ends in error. Its clock goes ``slower`` than the host's, for a network that is as
    much slower than what it stands for.

    Any thread may use an engine. A connection or listener is used by one thread at a time.

    Raises OpenError, with one sentence, if it cannot be had; then nothing is left behind.
    """

    def __init__(self, port: str | Port | Sequence[Port] = "udp", *, name: str = "harp",
                 progress: str = "thread", cpu: int = -1, node: int = -1, frames: int = 4096,
                 frame_bytes: int = 4096, connections: int = 1024, dump: str | None = None,
                 slower: int = 1, quiet_after: float = 0.0002, **port_options: Any) -> None:
        self._guard = Guard("engine", patient=True)
        self._guard.closed = True  # until it is open
        ports = _ports(port, port_options)
        self._keep: list[Any] = []
        config = ffi.new("struct harp_engine_config *")
        lib.harp_engine_defaults(config)
        config.name = self._text(name)
        config.progress = _one_of("progress", progress, PROGRESS)
        config.cpu, config.node = cpu, node
        config.frames, config.frame_bytes = frames, frame_bytes
        config.connections, config.slower = connections, slower
        config.quiet_ns = int(quiet_after * 1e9)
        config.dump = self._text(dump)
        for wanted, place in zip(ports, config.ports, strict=False):
            self._describe(wanted, place)
        config.ports_n = len(ports)
        out, why = ffi.new("struct harp_engine **"), ffi.new("char[]", WHY_BYTES)
        _checked(lib.harp_engine_open(out, config, why), why)
        self.name, self.progress = name, progress
        self._engine = out[0]
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        # Objects that C has open. The collector forgets weak references before it ends anything.
        self._c_connections: set[Any] = set()
        self._listenings: set[Any] = set()
        self._guard.closed = False
        _engines.add(self)

    def _text(self, text: str | None) -> Any:
        if text is None:
            return ffi.NULL
        self._keep.append(ffi.new("char[]", text.encode()))  # C keeps the pointer
        return self._keep[-1]

    def _describe(self, wanted: Port, place: Any) -> None:
        _one_of("port", wanted.kind, KINDS)
        place.open = ffi.addressof(lib, f"harp_port_{wanted.kind}_open")
        place.faults = self._text(wanted.faults)
        config = place.config
        config.interface = self._text(wanted.interface)
        if wanted.address is not None and not lib.harp_address_parse(
                wanted.address.encode(), ffi.addressof(config, "local")):
            raise ValueError(f"{wanted.address!r} is no address: 10.0.0.1, 10.0.0.1:7000, fd00::1 "
                             "or [fd00::1]:7000")
        for field in ("locals", "mtu", "queue", "copy_only", "zero_copy_only",
                      "busy_poll_us", "ring_bytes"):
            setattr(config, field, getattr(wanted, field))

    @property
    def c_engine(self) -> Any:
        """The ``struct harp_engine *``, for a C function that drives it."""
        with self._guard:
            return self._engine

    def listen(self, **options: Any) -> Listener:
        """Await connections from owners of the handle, with these :class:`ConnectionOptions`."""
        config = _connection_config(ConnectionOptions(**options))
        out, why = ffi.new("struct harp_listening **"), ffi.new("char[]", WHY_BYTES)
        handle = ffi.new("struct harp_handle *")
        with self._guard:
            _checked(lib.harp_listen(self._engine, config, out, handle, why), why)
            self._listenings.add(out[0])
            made = Listener(self, out[0], Handle(bytes(ffi.buffer(handle))), config)
            self._listeners.add(made)
        return made

    def connect(self, handle: Handle | bytes, *, timeout: float | None = None,
                **options: Any) -> Connection:
        """Connect to a listener, with the :class:`ConnectionOptions` given.

        Waits for it at most ``timeout`` seconds (None: until the other end counts as dead). Raises
        OpenError, Timeout, or PeerGone if nobody answers.
        """
        connection = self.start(handle, **options)
        try:
            connection.connected.wait(timeout)
        except BaseException:
            connection.close()
            raise
        return connection

    async def connect_async(self, handle: Handle | bytes, **options: Any) -> Connection:
        """Like :meth:`connect`, without keeping the event loop from its work."""
        connection = self.start(handle, **options)
        try:
            await connection.connected
        except BaseException:
            connection.close()
            raise
        return connection

    def start(self, handle: Handle | bytes, **options: Any) -> Connection:
        """Begin to connect, and return at once; the connection's ``connected`` follows."""
        wanted = ConnectionOptions(**options)
        config = _connection_config(wanted)
        planned = self._flows(wanted.flows)
        config.flows, config.flows_n = planned, len(wanted.flows)
        known = handle if isinstance(handle, Handle) else Handle(bytes(handle))
        out, why = ffi.new("struct harp_connection **"), ffi.new("char[]", WHY_BYTES)
        with self._guard:
            _checked(lib.harp_connect(self._engine, known._c, config, out, why), why)
            made = self._adopt(out[0], config)
            made._planned = planned
        _warn_of_strays(why)
        return made

    def _follow(self, before: Any, flows: Sequence[tuple[str, str]]) -> tuple[Any, int]:
        """Let the connections of these flows go by others; these as C has them, and paths moved."""
        made, why = self._flows(flows), ffi.new("char[]", WHY_BYTES)
        with self._guard:
            moved = int(lib.harp_engine_follow_plan(self._engine, before, made, len(flows), why))
            self._keep.remove(before)
        _warn_of_strays(why)
        return made, moved

    def _flows(self, flows: Sequence[tuple[str, str]]) -> Any:
        if not flows:
            return ffi.NULL
        made = ffi.new("struct harp_planned_flow[]", len(flows))
        for flow, place in zip(flows, made, strict=True):
            for text, address in zip(flow, (place.source, place.target), strict=True):
                if not lib.harp_address_parse(text.encode(), ffi.addressof(address)):
                    raise ValueError(f"{text!r} of a planned flow is no address: 10.0.0.1:7000 or "
                                     "[fd00::1]:7000")
        self._keep.append(made)  # C keeps the pointer
        return made

    def _adopt(self, connection: Any, config: Any) -> Connection:
        self._c_connections.add(connection)
        made = Connection(self, connection, int(config.stream_frames), int(config.draft_frames))
        self._connections.add(made)
        return made

    def drive(self) -> bool:
        """Take one turn now, if no other thread does; whether anything moved."""
        with self._guard:
            return bool(lib.harp_engine_drive(self._engine))

    @property
    def lines(self) -> list[str]:
        """Its memory and its ports, a line each, with hints where they could be better."""
        with self._guard:
            found: list[str] = []
            while (line := lib.harp_engine_line(self._engine, len(found))) != ffi.NULL:
                found.append(ffi.string(line).decode())
            return found

    @property
    def stats_path(self) -> str:
        """The file in which others see its counters."""
        with self._guard:
            return str(ffi.string(lib.harp_engine_stats_path(self._engine)).decode())

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._guard.closed

    def close(self, linger: float = 0.1) -> None:
        """Close all of its connections and listeners, then give its memory and ports back.

        Other ends have ``linger`` seconds to hear of it. BufferError while views of its memory are
        in use: drop them first. An engine whose context is left closes without that, when the last
        of them is gone and nothing refers to it.
        """
        self._guard.close(lambda: self._shut(linger))

    def _shut(self, linger: float) -> None:
        for connection in list(self._connections):
            connection.close()
        for listener in list(self._listeners):
            listener.close()
        for connection in list(self._c_connections):
            self._let_go(connection)
        for listening in list(self._listenings):
            self._unlisten(listening)
        lib.harp_engine_drain(self._engine, int(linger * 1e9))
        lib.harp_engine_close(self._engine)
        self._engine = ffi.NULL

    def _let_go(self, connection: Any) -> None:
        if connection in self._c_connections:
            self._c_connections.remove(connection)
            lib.harp_connection_close(connection)

    def _unlisten(self, listening: Any) -> None:
        if listening in self._listenings:
            self._listenings.remove(listening)
            lib.harp_unlisten(listening)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.leave(self.close)

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self.close(linger=0.01)

    def __repr__(self) -> str:
        return f"<Engine {self.name}{' (closed)' if self.closed else ''}>"


class Listener:
    """Awaits connections from owners of its ``handle``. Made by :meth:`Engine.listen`."""

    def __init__(self, engine: Engine, listening: Any, handle: Handle, config: Any) -> None:
        self._guard = Guard("listener")
        self._engine = engine
        self._listening = listening
        self._config = config
        self._taken: Any = None  # accepted, not handed out yet
        self.handle = handle

    def accept(self, timeout: float | None = None) -> Connection:
        """Return the next connection; Timeout after ``timeout`` seconds (None: never)."""
        with self._guard:
            self._guard.until(lambda: self._take() is not None,
                              lambda ns: lib.harp_listening_wait(self._listening, ns),
                              timeout, "a connection")
            return self._adopt()

    async def accept_async(self) -> Connection:
        """Like :meth:`accept`, without keeping the event loop from its work."""
        fd = self.fileno()
        while True:
            with self._guard:
                if self._take() is not None:
                    return self._adopt()
            await readable(fd)

    def _take(self) -> Any:
        if self._taken is None:
            connection = lib.harp_accept(self._listening)
            self._taken = None if connection == ffi.NULL else connection
        return self._taken

    def _adopt(self) -> Connection:
        connection, self._taken = self._taken, None
        return self._engine._adopt(connection, self._config)

    def fileno(self) -> int:
        """Give a descriptor that becomes readable when there is a connection to accept."""
        with self._guard:
            return int(lib.harp_listening_fd(self._listening))

    def close(self) -> None:
        """Await no more. Connections that were accepted go on; those that were not are ended."""
        self._guard.close(self._shut)

    def _shut(self) -> None:
        if self._taken is not None:
            self._adopt().close()
        self._engine._unlisten(self._listening)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _ports(port: str | Port | Sequence[Port], options: dict[str, Any]) -> list[Port]:
    if isinstance(port, str):
        return [Port(port, **options)]
    if options:
        raise TypeError(f"{', '.join(options)}: set them in the Port")
    ports = [port] if isinstance(port, Port) else list(port)
    if not 1 <= len(ports) <= lib.HARP_PORTS_MAX:
        raise ValueError(f"an engine has 1 to {lib.HARP_PORTS_MAX} ports, not {len(ports)}")
    return ports


def _connection_config(options: ConnectionOptions) -> Any:
    config = ffi.new("struct harp_connection_config *")
    lib.harp_connection_defaults(config)
    if options.dead_after < 1:
        raise ValueError(f"dead_after is {options.dead_after:g} s: 1 s at least is needed")
    config.paths = options.paths
    config.dead_ns = int(options.dead_after * 1e9)
    config.stream_frames, config.draft_frames = options.streamed, options.drafts
    config.read_early_most = lib.HARP_MESSAGE_MAX if options.read_early else 0
    config.crc = _one_of("checksum", options.checksum, CHECKSUMS)
    config.traffic_class = options.traffic_class
    config.cc = lib.harp_cc_by_name(options.congestion.encode())
    if config.cc == ffi.NULL:
        _one_of("congestion", options.congestion, ("swift", "fixed"))
    return config


def _one_of(what: str, given: str, known: Mapping[str, int] | Sequence[str]) -> int:
    if given not in known:
        raise ValueError(f"{what} is {given!r}; there are {', '.join(known)}")
    return known[given] if isinstance(known, Mapping) else known.index(given)


def _warn_of_strays(why: Any) -> None:
    if ffi.string(why):
        warnings.warn(f"not as planned: {ffi.string(why).decode(errors='replace')}",
                      RuntimeWarning, stacklevel=4)


def _checked(error: int, why: Any) -> None:
    if error:
        raise OpenError.of(error, ffi.string(why).decode(errors="replace"))
