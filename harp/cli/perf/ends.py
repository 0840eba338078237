"""Both ends of a measurement of ``harp perf``: their protocol, and runs over HARP and kernel TCP.

client                                            server
{"harp_perf": 2, port, engines, paths, zerocopy} -->
<-- {"handles": […], "lines": […]}                opens as many engines and listens
connects each                                     accepts each
<-- {"open": true}
{"run": {role, size, messages, window}} -->
<-- {"ready": true}
runs                                              runs
<-- {"cpu_ns": …}
more runs
{"end": true} -->

With ``--tcp`` the same messages go over plain sockets too:

{"tcp": sockets} -->
<-- {"address": …, "port": …, "token": …}         listens
connects each, sends the token                    accepts each that has the token
<-- {"open": true}
{"run": {…, "tcp": true}} -->                     as above

Each engine or socket has one thread at each end and its own messages. Over TCP, single round trips
use the first socket. The loops are C's: cnet/engine/perf.h and cnet/engine/perf_tcp.h.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from harp._cnet import ffi, lib
from harp.net import Connection, Engine, Port
from harp.net.connection import MESSAGE_MAX, MESSAGES
from harp.net.errors import OpenError
from harp.net.nics import interface_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from harp.cli.perf.control_channel import Channel

DEAD_S = 5.0
SLICE_NS = 50_000_000
"""Time that C runs before Python checks for signals."""
ROLES = {"send": 0, "receive": 1, "ping": 2, "pong": 3}
OTHER = {"send": "receive", "ping": "pong"}
PROTOCOL = 2
WRONG_USE = (errno.EINVAL, errno.EMSGSIZE, errno.ENODEV, errno.EADDRNOTAVAIL)
"""Errors of opening an engine that options cause: faults, MTU, interface, address."""
FRAMES = 16384
"""Frames of an engine with ``--zerocopy``: half for drafts, a quarter lent to readers."""
CALL_S = 0.05
"""Longest wait of a system call, so that signals are seen."""
TOKEN_BYTES = 16
SOCKETS_MAX = 64


@dataclass(frozen=True)
class Run:
    """One run of all engines or sockets, seen from one end."""

    role: str
    size: int
    messages: int
    """Per engine or socket."""
    window: int

    @property
    def others(self) -> dict[str, Any]:
        """The same for the other end."""
        return {"role": OTHER[self.role], "size": self.size, "messages": self.messages,
                "window": self.window}


@dataclass
class Outcome:
    """Times of a run at this end, in nanoseconds."""

    elapsed_ns: int = 0
    cpu_ns: int = 0
    round_trips_ns: list[int] = field(default_factory=list)


def outcome_of(begun: Sequence[Future[tuple[Any, Any]]], stop: threading.Event) -> Outcome:
    """Wait for all threads of a run, which give pairs of C's counters and round trips.

    If one fails, stop the others and raise its exception.
    """
    try:
        done = [future.result() for future in begun]
    except BaseException:
        stop.set()
        raise
    return Outcome(max(p.end_ns for p, _ in done) - min(p.begin_ns for p, _ in done),
                   sum(p.cpu_ns for p, _ in done),
                   [int(ns) for _, samples in done for ns in samples])


@dataclass(frozen=True)
class Asked:
    """Configuration of an end's engines."""

    port: Port
    engines: int = 1
    paths: int = 1
    zerocopy: bool = False
    cpu: int = -1
    address: str = "127.0.0.1"
    """Address of the control connection on this host; kernel TCP uses it too."""

    def open(self) -> list[Engine]:
        """Open them all, or none."""
        made: list[Engine] = []
        try:
            made.extend(Engine(self.port, name=f"perf {i}", progress="inline",
                               frames=FRAMES if self.zerocopy else 4096)
                        for i in range(self.engines))
        except BaseException:
            close(made)
            raise
        return made

    @property
    def connection(self) -> dict[str, Any]:
        """Options of each connection."""
        zerocopy = {"streamed": FRAMES // 4, "drafts": FRAMES // 2} if self.zerocopy else {}
        return {"paths": self.paths, "dead_after": DEAD_S, **zerocopy}


def card_of(address: str) -> str | None:
    """Give the interface of an own address that xdp could use: any but loopback."""
    name = interface_of(address)
    return None if name == "lo" else name


def close(engines: Sequence[Engine]) -> None:
    """Close them all."""
    for engine in engines:
        engine.close()


class End:
    """One end's engines and connections, and a thread for each."""

    def __init__(self, asked: Asked, engines: Sequence[Engine], stop: threading.Event) -> None:
        self.asked = asked
        self.engines = engines
        self.connections: list[Connection] = []
        self.stop = stop
        self._memory: dict[int, Any] = {}
        self._pool = ThreadPoolExecutor(max(1, len(engines)))

    def run(self, run: Run) -> Outcome:
        """Run all engines to the end; raise what ended a connection."""
        begun = self.begin(run)
        return self.finish(begun)

    def begin(self, run: Run) -> list[Future[Any]]:
        """Let all engines begin."""
        return [self._pool.submit(self._one, i, run) for i in range(len(self.connections))]

    def finish(self, begun: Sequence[Future[Any]]) -> Outcome:
        """Wait for all engines."""
        return outcome_of(begun, self.stop)

    def _one(self, index: int, run: Run) -> tuple[Any, Any]:
        connection, engine = self.connections[index], self.engines[index]
        self._pin(index)
        perf = ffi.new("struct harp_perf *")
        samples = np.zeros(run.messages if run.role == "ping" else 0, np.uint64)
        frames = ffi.new("uint32_t[]", FRAMES // 2)
        perf.role, perf.size, perf.window = ROLES[run.role], run.size, run.window
        perf.messages = run.messages
        perf.streamed = perf.drafts = self.asked.zerocopy
        perf.memory = ffi.from_buffer("uint8_t[]", self._room(index, run))
        perf.samples_ns = ffi.from_buffer("uint64_t[]", samples)
        perf.frames, perf.frames_room = frames, len(frames)
        with connection._guard:
            state = self._drive(connection, engine, perf)
        if state == lib.HARP_PERF_CLOSED:
            raise click.ClickException(f"the connection ended: {connection._why()}")
        if state == lib.HARP_PERF_BAD:
            raise click.ClickException("an unexpected message came: this is a bug of the stack, "
                                       "please report it")
        return perf, samples

    def _pin(self, index: int) -> None:
        if self.asked.cpu < 0:
            return
        cpu = self.asked.cpu + index
        try:
            os.sched_setaffinity(0, {cpu})  # of this thread
        except OSError as error:
            raise click.UsageError(f"--cpu: no thread can run on CPU {cpu} "
                                   f"({error.strerror}); possible here are "
                                   f"{', '.join(map(str, sorted(os.sched_getaffinity(0))))}"
                                   ) from error

    def _drive(self, connection: Connection, engine: Engine, perf: Any) -> int:
        while True:
            state = lib.harp_perf_run(connection._connection, engine._engine, perf, SLICE_NS)
            if state != lib.HARP_PERF_MORE:
                return int(state)
            if self.stop.is_set():
                raise click.Abort

    def _room(self, index: int, run: Run) -> Any:
        need = 1 if self.asked.zerocopy else 2 * run.window * run.size + 1
        if index not in self._memory or len(self._memory[index]) < need:
            self._memory[index] = np.empty(need, np.uint8)
        return self._memory[index]

    def counters(self) -> dict[str, int]:
        """Sums over all connections."""
        infos = [connection.info.counters for connection in self.connections]
        return {name: sum(info[name] for info in infos) for name in infos[0]}

    def close(self) -> None:
        """End all connections and engines."""
        self.stop.set()
        self._pool.shutdown()
        close(self.engines)


class TcpEnd:
    """One end's sockets, and a thread for each."""

    def __init__(self, sockets: Sequence[socket.socket], stop: threading.Event) -> None:
        self.sockets = sockets
        self.stop = stop
        timeout = struct.pack("@ll", 0, int(CALL_S * 1e6))
        for made in sockets:
            made.settimeout(None)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        self._pool = ThreadPoolExecutor(len(sockets))

    def begin(self, run: Run) -> list[Future[Any]]:
        """Let the sockets begin: all, or the first one with single round trips."""
        used = self.sockets[:1] if run.role in {"ping", "pong"} else self.sockets
        return [self._pool.submit(self._one, made, run) for made in used]

    def finish(self, begun: Sequence[Future[Any]]) -> Outcome:
        """Wait for all of them."""
        return outcome_of(begun, self.stop)

    def _one(self, made: socket.socket, run: Run) -> tuple[Any, Any]:
        perf = ffi.new("struct harp_perf_tcp *")
        samples = np.zeros(run.messages if run.role == "ping" else 0, np.uint64)
        memory = np.empty(run.window * run.size, np.uint8)
        perf.role, perf.size, perf.window = ROLES[run.role], run.size, run.window
        perf.messages = run.messages
        perf.memory = ffi.from_buffer("uint8_t[]", memory)
        perf.samples_ns = ffi.from_buffer("uint64_t[]", samples)
        self._drive(made, perf)
        return perf, samples

    def _drive(self, made: socket.socket, perf: Any) -> None:
        before, alive = (-1, 0), time.monotonic()
        while True:
            state = lib.harp_perf_tcp_run(made.fileno(), perf, SLICE_NS)
            if state == lib.HARP_PERF_DONE:
                return
            if state == lib.HARP_PERF_CLOSED:
                raise click.ClickException("a TCP connection ended: "
                                           f"{_reason_of_tcp(int(perf.error))}")
            if state == lib.HARP_PERF_BAD:
                raise click.ClickException("an unexpected message came over TCP: this is a bug of "
                                           "harp perf, please report it")
            if self.stop.is_set():
                raise click.Abort
            if before != (before := (int(perf.done), int(perf.moved))):
                alive = time.monotonic()
            elif time.monotonic() - alive > DEAD_S:
                raise click.ClickException(f"nothing moved over TCP for {DEAD_S:g} s")

    def close(self) -> None:
        """End all connections."""
        self.stop.set()
        self._pool.shutdown()
        for made in self.sockets:
            made.close()


def _reason_of_tcp(error: int) -> str:
    return os.strerror(error) if error else "the other end closed it"


def listen_tcp(channel: Channel, address: str, sockets: int, stop: threading.Event) -> TcpEnd:
    """Open the server's end: listen on any port of ``address`` and send the client its number."""
    token = secrets.token_bytes(TOKEN_BYTES)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made: list[socket.socket] = []
    with socket.create_server((address, 0), family=family, backlog=sockets) as listening:
        listening.settimeout(DEAD_S)
        channel.tell(address=address, port=listening.getsockname()[1], token=token.hex())
        try:
            while len(made) < sockets:
                one, _ = listening.accept()
                one.settimeout(DEAD_S)
                if secrets.compare_digest(_read_token(one), token):
                    made.append(one)
                else:
                    one.close()
        except OSError as error:
            _close_sockets(made)
            raise click.ClickException(f"the client did not open its TCP connections: {error}"
                                       ) from error
    channel.tell(open=True)
    return TcpEnd(made, stop)


def _read_token(made: socket.socket) -> bytes:
    token = b""
    while len(token) < TOKEN_BYTES and (more := made.recv(TOKEN_BYTES - len(token))):
        token += more
    return token


def _close_sockets(made: Sequence[socket.socket]) -> None:
    for one in made:
        one.close()


def serve(channel: Channel, asked: Asked, stop: threading.Event, *, follow: bool) -> None:
    """Serve one client until it ends. ``follow``: use the kind of port that it asks for."""
    said = channel.hear()
    try:
        end = _open_end(said, asked, stop, follow=follow)
    except Exception as error:
        _report(channel, error)
        raise
    try:
        _accept(channel, end)
        _serve_runs(channel, end, asked.address)
    except Exception as error:
        _report(channel, error)
        raise
    finally:
        end.close()


def _serve_runs(channel: Channel, end: End, address: str) -> None:
    with contextlib.ExitStack() as opened:
        tcp: TcpEnd | None = None
        while (said := channel.hear(None)).keys() & {"run", "tcp"}:
            if "tcp" in said:
                if not 1 <= int(said["tcp"]) <= SOCKETS_MAX:
                    raise click.ClickException(f"the number of sockets is out of range: {said}")
                tcp = listen_tcp(channel, address, int(said["tcp"]), end.stop)
                opened.callback(tcp.close)
                continue
            run = _parse_run(said["run"])
            runs: End | TcpEnd = tcp if tcp and said["run"].get("tcp") else end
            begun = runs.begin(run)
            channel.tell(ready=True)
            channel.tell(cpu_ns=runs.finish(begun).cpu_ns)


def _parse_run(said: dict[str, Any]) -> Run:
    run = Run(str(said["role"]), int(said["size"]), int(said["messages"]), int(said["window"]))
    if not (run.role in OTHER.values() and 0 <= run.size <= MESSAGE_MAX and run.messages > 0
            and 1 <= run.window <= MESSAGES):
        raise click.ClickException(f"invalid run: {said}")
    return run


def _report(channel: Channel, error: Exception) -> None:
    with contextlib.suppress(click.ClickException):
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        channel.tell(error=text, wrong_use=is_wrong_use(error))


def is_wrong_use(error: Exception) -> bool:
    """Whether the options can never work on this host."""
    return (isinstance(error, click.UsageError)
            or (isinstance(error, OpenError) and error.errno in WRONG_USE))


def _open_end(said: dict[str, Any], asked: Asked, stop: threading.Event, *, follow: bool) -> End:
    if said.get("harp_perf") != PROTOCOL:
        raise click.ClickException(f"this end's protocol version is {PROTOCOL}, the other's "
                                   f"{said.get('harp_perf')}")
    kind = str(said["port"]) if follow else asked.port.kind
    interface = asked.port.interface
    if kind == "xdp" and not interface:
        interface = card_of(asked.address)
    port = Port(**{**vars(asked.port), "kind": kind, "interface": interface,
                   "locals": int(said["paths"])})
    wanted = Asked(port, int(said["engines"]), int(said["paths"]), bool(said["zerocopy"]),
                   asked.cpu, asked.address)
    return End(wanted, wanted.open(), stop)


def _accept(channel: Channel, end: End) -> None:
    listeners = [engine.listen(**end.asked.connection) for engine in end.engines]
    channel.tell(handles=[listener.handle.to_bytes().hex() for listener in listeners],
                 lines=[line for engine in end.engines for line in engine.lines])
    for listener in listeners:
        end.connections.append(listener.accept(DEAD_S + 5))
        listener.close()
    for connection in end.connections:
        connection.connected.wait(DEAD_S)
    channel.tell(open=True)


class Client:
    """The measuring end."""

    def __init__(self, channel: Channel, asked: Asked, stop: threading.Event) -> None:
        self._channel = channel
        channel.tell(harp_perf=PROTOCOL, port=asked.port.kind, engines=asked.engines,
                     paths=asked.paths, zerocopy=asked.zerocopy)
        said = channel.hear()
        self.lines = [str(line) for line in said["lines"]]
        self.end = End(asked, asked.open(), stop)
        try:
            self.end.connections = [
                engine.connect(bytes.fromhex(handle), **asked.connection)
                for engine, handle in zip(self.end.engines, said["handles"], strict=True)]
            channel.hear()
        except BaseException:
            self.end.close()
            raise

    def run(self, run: Run) -> tuple[Outcome, int]:
        """Run both ends; return the outcome here and the other end's CPU time in nanoseconds."""
        self._channel.tell(run=run.others)
        self._channel.hear()
        begun = self.end.begin(run)
        outcome = self.end.finish(begun)
        return outcome, int(self._channel.hear()["cpu_ns"])

    def close(self) -> None:
        """End the conversation and close everything."""
        with contextlib.suppress(click.ClickException):
            self._channel.tell(end=True)
        self.end.close()


@contextlib.contextmanager
def client(channel: Channel, asked: Asked, stop: threading.Event) -> Iterator[Client]:
    """Connect to a server for the time of a context."""
    made = Client(channel, asked, stop)
    try:
        yield made
    finally:
        made.close()


class TcpClient:
    """The measuring end over TCP; it runs what `Client` runs."""

    def __init__(self, channel: Channel, sockets: int, stop: threading.Event) -> None:
        self._channel = channel
        channel.tell(tcp=sockets)
        said = channel.hear()
        where, token = (str(said["address"]), int(said["port"])), bytes.fromhex(said["token"])
        made: list[socket.socket] = []
        try:
            for _ in range(sockets):
                made.append(socket.create_connection(where, timeout=DEAD_S))
                made[-1].sendall(token)
        except OSError as error:
            _close_sockets(made)
            raise click.ClickException(f"no TCP connection to {where[0]}, port {where[1]}: {error}"
                                       ) from error
        channel.hear()
        self.end = TcpEnd(made, stop)

    def run(self, run: Run) -> tuple[Outcome, int]:
        """Run both ends; return the outcome here and the other end's CPU time in nanoseconds."""
        self._channel.tell(run={**run.others, "tcp": True})
        self._channel.hear()
        outcome = self.end.finish(self.end.begin(run))
        return outcome, int(self._channel.hear()["cpu_ns"])

    def close(self) -> None:
        """Close the connections."""
        self.end.close()
