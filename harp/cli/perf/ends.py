"""The two ends of ``harp perf``: what they agree on, and engines in cnet/engine/perf.h's loop.

client                                            server
{"harp_perf": 1, port, engines, paths, zerocopy} -->
<-- {"handles": […], "lines": […]}              opens as many engines and listens
connects each                                     accepts each
<-- {"open": true}
{"run": {role, size, messages, window}} -->
<-- {"ready": true}
runs                                              runs
<-- {"cpu_ns": …}
… more runs, of kernel TCP as well (perf_tcp) …
{"end": true} -->
"""

from __future__ import annotations

import contextlib
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from harp._cnet import ffi, lib
from harp.cli.perf.run_spec import DEAD_S, OTHER, ROLES, SLICE_NS, Outcome, Run, outcome_of
from harp.cli.perf.tcp import SOCKETS_MAX, TcpEnd, listen_tcp
from harp.net import Connection, Engine, Port
from harp.net.connection import MESSAGE_MAX, MESSAGES
from harp.net.errors import OpenError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from harp.cli.perf.channel import Channel

PROTOCOL = 2
WRONG_USE = (errno.EINVAL, errno.EMSGSIZE, errno.ENODEV, errno.EADDRNOTAVAIL)
"""Of engines that are not opened: faults, MTU, interface and address as they were given."""
FRAMES = 16384
"""Of an engine with ``--zerocopy``; half may be written into, a quarter lent."""


@dataclass(frozen=True)
class Asked:
    """How an end's engines are to be."""

    port: Port
    engines: int = 1
    paths: int = 1
    zerocopy: bool = False
    cpu: int = -1
    address: str = "127.0.0.1"
    """Where kernel TCP is measured, too: of the control connection, on this host."""

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
        """Run all engines to their end. Raises what ended a connection."""
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
            raise click.ClickException("a message came that was not due: this is a fault of the "
                                       "stack, please report it")
        return perf, samples

    def _pin(self, index: int) -> None:
        if self.asked.cpu < 0:
            return
        cpu = self.asked.cpu + index
        try:
            os.sched_setaffinity(0, {cpu})  # of this thread
        except OSError as error:
            raise click.ClickException(f"no thread can run on CPU {cpu}: {error.strerror}"
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


def serve(channel: Channel, asked: Asked, stop: threading.Event, *, follow: bool) -> None:
    """Be the server of one client, to its end. ``follow``: on the kind of port that it asks for."""
    said = channel.hear()
    try:
        end = _opened(said, asked, stop, follow=follow)
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
                    raise click.ClickException(f"so many sockets are not opened: {said}")
                tcp = listen_tcp(channel, address, int(said["tcp"]), end.stop)
                opened.callback(tcp.close)
                continue
            run = _understood(said["run"])
            runs: End | TcpEnd = tcp if tcp and said["run"].get("tcp") else end
            begun = runs.begin(run)
            channel.tell(ready=True)
            channel.tell(cpu_ns=runs.finish(begun).cpu_ns)


def _understood(said: dict[str, Any]) -> Run:
    run = Run(str(said["role"]), int(said["size"]), int(said["messages"]), int(said["window"]))
    if not (run.role in OTHER.values() and 0 <= run.size <= MESSAGE_MAX and run.messages > 0
            and 1 <= run.window <= MESSAGES):
        raise click.ClickException(f"there is no such run: {said}")
    return run


def _report(channel: Channel, error: Exception) -> None:
    with contextlib.suppress(click.ClickException):
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        channel.tell(error=text, wrong_use=is_wrong_use(error))


def is_wrong_use(error: Exception) -> bool:
    """Whether what was asked for cannot be on this host, whatever it does."""
    return isinstance(error, OpenError) and error.errno in WRONG_USE


def _opened(said: dict[str, Any], asked: Asked, stop: threading.Event, *, follow: bool) -> End:
    if said.get("harp_perf") != PROTOCOL:
        raise click.ClickException(f"this end's protocol of measurement is {PROTOCOL}, the "
                                   f"other's {said.get('harp_perf')}")
    kind = str(said["port"]) if follow else asked.port.kind
    port = Port(**{**vars(asked.port), "kind": kind, "locals": int(said["paths"])})
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
    """The end that measures."""

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
        """Run both ends; what it took here, and the other end's CPU time in nanoseconds."""
        self._channel.tell(run=run.others)
        self._channel.hear()
        begun = self.end.begin(run)
        outcome = self.end.finish(begun)
        return outcome, int(self._channel.hear()["cpu_ns"])

    def close(self) -> None:
        """Say goodbye and close everything."""
        with contextlib.suppress(click.ClickException):
            self._channel.tell(end=True)
        self.end.close()


@contextlib.contextmanager
def client(channel: Channel, asked: Asked, stop: threading.Event) -> Iterator[Client]:
    """Be the client of a server."""
    made = Client(channel, asked, stop)
    try:
        yield made
    finally:
        made.close()
