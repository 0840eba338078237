"""Kernel TCP beside what ``harp perf --tcp`` measures: the same messages over plain sockets.

client                                            server
{"tcp": sockets} -->
<-- {"address": …, "port": …, "token": …}        listens
connects each, sends the token                    accepts each that knows the token
<-- {"open": true}
{"run": {…, "tcp": true}} -->                     as in perf_ends

A socket has a thread at each end and messages of its own, as a connection of HARP has. Single round
trips take the first one.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from harp._cnet import ffi, lib
from harp.cli.perf.run_spec import DEAD_S, ROLES, SLICE_NS, Outcome, Run, outcome_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from concurrent.futures import Future

    from harp.cli.perf.channel import Channel

CALL_S = 0.05
"""For so long a system call waits, so that a signal is seen."""
TOKEN_BYTES = 16
SOCKETS_MAX = 64


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
                raise click.ClickException(f"a TCP connection ended: {_why(int(perf.error))}")
            if state == lib.HARP_PERF_BAD:
                raise click.ClickException("a message came over TCP that was not due: this is a "
                                           "fault of harp perf, please report it")
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


def _why(error: int) -> str:
    return os.strerror(error) if error else "the other end closed it"


def listen_tcp(channel: Channel, address: str, sockets: int, stop: threading.Event) -> TcpEnd:
    """Be the server's end: listen on any port of ``address`` and tell the client where."""
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
            _close(made)
            raise click.ClickException(f"the client's TCP connections did not come: {error}"
                                       ) from error
    channel.tell(open=True)
    return TcpEnd(made, stop)


def _read_token(made: socket.socket) -> bytes:
    token = b""
    while len(token) < TOKEN_BYTES and (more := made.recv(TOKEN_BYTES - len(token))):
        token += more
    return token


def _close(made: Sequence[socket.socket]) -> None:
    for one in made:
        one.close()


class TcpClient:
    """The end that measures; it runs what ``perf_ends.Client`` runs."""

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
            _close(made)
            raise click.ClickException(f"no TCP connection to {where[0]}, port {where[1]}: {error}"
                                       ) from error
        channel.hear()
        self.end = TcpEnd(made, stop)

    def run(self, run: Run) -> tuple[Outcome, int]:
        """Run both ends; what it took here, and the other end's CPU time in nanoseconds."""
        self._channel.tell(run={**run.others, "tcp": True})
        self._channel.hear()
        outcome = self.end.finish(self.end.begin(run))
        return outcome, int(self._channel.hear()["cpu_ns"])

    def close(self) -> None:
        """Close the connections."""
        self.end.close()
