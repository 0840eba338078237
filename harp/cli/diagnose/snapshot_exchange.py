"""Snapshots over a TCP port, for clients that hold a token.

    server   {"format": "harp-snapshot-1", "challenge": 64 hex digits}
    client   {"answer": HMAC-SHA256(token, challenge), "seconds": 2.0, "moments": 5}
    server   the snapshot, or {"error": "..."}; then it closes the connection

Each message is a line of JSON.

The token is never sent and a challenge is used once: an eavesdropper sees counters and addresses,
but cannot make a request (RFC 2104; comparison in constant time). A client can change nothing. All
sizes and times are bounded: REQUEST_S for a whole request, however its bytes trickle in, and
CLIENTS answers at a time. Clients without the token take no place from those that have it: of more
than STRANGERS the oldest are hung up on.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import socketserver
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from harp.cli.diagnose.snapshot import FORMAT, SnapshotError, from_json, take_report, to_json
from harp.reading import read_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harp.cli.diagnose.snapshot import Report

REQUEST_BYTES = 512
REPORT_BYTES = 64 << 20
"""Ten times a report of five samples of a thousand connections with eight paths."""
REQUEST_S = 5.0
CLIENTS = 4
STRANGERS = 64
"""As many as a cluster's tool may connect at the same moment; each costs a thread."""
TOKEN_LEAST = 16
"""Bytes. An eavesdropper can guess the token off line after one exchange."""
LONGEST_S, MOST_MOMENTS = 60.0, 100


class ExchangeError(Exception):
    """A failed exchange; one sentence with the host and the reason."""


def read_token(path: Path) -> bytes:
    """Read a token; ExchangeError if others may read the file, or the token is too short."""
    try:
        token = read_bytes(path).strip()
        mode = path.stat().st_mode
    except OSError as error:
        raise ExchangeError(f"{path} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise ExchangeError(f"{path} can be read by others than its owner: chmod 600 {path}")
    if len(token) < TOKEN_LEAST:
        raise ExchangeError(f"{path} has a token of {len(token)} bytes; at least {TOKEN_LEAST} "
                            "are needed: openssl rand -hex 32")
    return token


def _answer(token: bytes, challenge: str) -> str:
    return hmac.new(token, challenge.encode(), hashlib.sha256).hexdigest()


def _read_line(sender: socket.socket, most_bytes: int, wait_s: float) -> bytes:
    """Read a line, or what there is of it if the sender ends; TimeoutError if that takes longer."""
    deadline, line = time.monotonic() + wait_s, bytearray()
    while not line.endswith(b"\n") and len(line) < most_bytes:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        sender.settimeout(left_s)
        piece = sender.recv(min(most_bytes - len(line), 1 << 20))
        if not piece:
            break
        line += piece
    return bytes(line)


class _Handler(socketserver.BaseRequestHandler):
    request: socket.socket

    def handle(self) -> None:
        assert isinstance(self.server, SnapshotServer)
        with suppress(OSError, ValueError, TypeError, KeyError):  # such a request gets no answer
            self._serve(self.server)

    def _serve(self, server: SnapshotServer) -> None:
        challenge = secrets.token_hex(32)
        self._send({"format": FORMAT, "challenge": challenge})
        said = json.loads(_read_line(self.request, REQUEST_BYTES, REQUEST_S))
        if not hmac.compare_digest(_answer(server.token, challenge).encode(),
                                   str(said["answer"]).encode()):
            self._send({"error": "wrong token"})
            return
        seconds, moments = float(said["seconds"]), int(said["moments"])
        if not (0 < seconds <= LONGEST_S and 2 <= moments <= MOST_MOMENTS):
            raise ValueError
        server.forget_stranger(self.request)
        if not server.places.acquire(blocking=False):
            self._send({"error": "the server is busy; try again"})
            return
        try:
            self._write(to_json(take_report(server.host, seconds, moments)))
        finally:
            server.places.release()

    def _send(self, said: dict[str, Any]) -> None:
        self._write(json.dumps(said))

    def _write(self, line: str) -> None:
        self.request.settimeout(REQUEST_S)  # sendall's is for all of it
        self.request.sendall(line.encode() + b"\n")


class SnapshotServer(socketserver.ThreadingTCPServer):
    """Looks at this host when asked; ``serve_forever`` is the caller's."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = STRANGERS

    def __init__(self, address: str, port: int, token: bytes, host: str) -> None:
        self.token, self.host = token, host
        self.places = threading.BoundedSemaphore(CLIENTS)
        self._strangers: deque[socket.socket] = deque()
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread; beyond STRANGERS, hang up on the oldest."""
        with self._lock:
            self._strangers.append(request)
            if len(self._strangers) > STRANGERS:
                with suppress(OSError):  # its peer has ended
                    self._strangers.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that has been served."""
        self.forget_stranger(request)
        super().shutdown_request(request)

    def forget_stranger(self, request: socket.socket) -> None:
        """Say that a connection has shown the token, or ends."""
        with self._lock, suppress(ValueError):
            self._strangers.remove(request)


def ask_host(host: str, port: int, token: bytes, seconds: float, moments: int) -> Report:
    """Have a host look at itself; raises ExchangeError."""
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), REQUEST_S) as made:
            challenge = json.loads(_read_line(made, REQUEST_BYTES, REQUEST_S))
            if "error" in challenge:
                raise ExchangeError(f"{where} says: {str(challenge['error'])[:200]}")
            made.sendall(json.dumps({"answer": _answer(token, str(challenge["challenge"])),
                                     "seconds": seconds, "moments": moments}).encode() + b"\n")
            line = _read_line(made, REPORT_BYTES, seconds + REQUEST_S)
    except TimeoutError as error:
        raise ExchangeError(f"{where} does not answer in time") from error
    except OSError as error:
        raise ExchangeError(f"{where} cannot be reached: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ExchangeError(f"{where} is no `harp diagnose --serve`") from error
    return _report_of(where, line)


def _report_of(where: str, line: bytes) -> Report:
    if line.startswith(b'{"error"'):
        raise ExchangeError(f"{where} says: {str(json.loads(line)['error'])[:200]}")
    try:
        return from_json(line)
    except SnapshotError as error:
        raise ExchangeError(f"{where}: {error}" if line else f"{where} hung up") from error


def ask_all(hosts: Sequence[tuple[str, int]], token: bytes, seconds: float,
            moments: int) -> tuple[list[Report], list[str]]:
    """Ask all hosts at the same time: their reports, and a sentence for each that gave none."""
    def ask(where: tuple[str, int]) -> Report | str:
        try:
            return ask_host(*where, token, seconds, moments)
        except ExchangeError as error:
            return str(error)
    with ThreadPoolExecutor(max_workers=min(64, max(1, len(hosts)))) as pool:
        answers = list(pool.map(ask, hosts))
    return ([each for each in answers if not isinstance(each, str)],
            [each for each in answers if isinstance(each, str)])
