"""The newest state, from the nearest peer that has it, for a peer that was late or is new.

Each peer answers at a TCP port, with one line of JSON each way and then the bytes of its state,
from the offset that was asked for. A state is the same at all peers of a round, bit for bit, so
what one peer began to send another one may finish; a hash (SHA-256) says whether it came right. A
state that is replaced by the next round's while it is sent breaks off, and the new one is asked
for: it must arrive within a round.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import socket
import socketserver
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

CHUNK_BYTES = 1 << 20
LINE_BYTES = 1 << 16
CONNECT_S, ANSWER_S = 5.0, 60.0
"""A peer that cannot be reached, or is silent, for this long is passed over. An answer may wait for
the hash of a large state."""
AGAIN_S = 0.1
"""Between two times that all are asked."""


@dataclass(frozen=True)
class Head:
    """Description of a state, sent before it."""

    number: int
    """Of the round after which it was so."""
    branch: str
    """Of the round (`harp.lightcc.outer.meeting`)."""
    steps: int
    """Inner steps that the peer which answers has made by now."""
    members: tuple[int, ...]
    nbytes: int
    sha256: str

    @property
    def age(self) -> tuple[int, int]:
        """Greater for newer states; one that a peer went on with alone is older than others'."""
        return age_of(self.branch, self.number)


def age_of(branch: str, number: int) -> tuple[int, int]:
    """Give the age of a state, after a round of a branch."""
    return -branch.count("/"), number


class BrokenOffError(Exception):
    """A peer broke off, or its state is another one by now."""


class StateServer(socketserver.ThreadingTCPServer):
    """Gives this peer's state to others.

    Args:
        host: the address of this host at which it listens.
        token: what a peer must know.
        steps: gives the inner steps made by now.

    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, token: str, steps: Callable[[], int]) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, 0), _Handler)
        self.token, self._steps = token, steps
        self._lock = threading.Lock()
        self._number, self._branch = -1, ""
        self._members: tuple[int, ...] = ()
        self._parts: Sequence[Bytes] = ()
        self._hash: str | None = None
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def address(self) -> list[Any]:
        """Its address: host and port."""
        return list(self.server_address[:2])

    @contextlib.contextmanager
    def changing(self, number: int, members: Sequence[int], parts: Sequence[Bytes],
                 branch: str = "") -> Iterator[None]:
        """Offer ``parts`` as the state after a round; they may change in this context alone."""
        with self._lock:
            yield
            self._number, self._branch = number, branch
            self._members, self._parts = tuple(members), parts
            self._hash = None

    def head(self) -> Head:
        """Describe the state; before there is one its number is -1."""
        with self._lock:
            if self._hash is None:
                whole = hashlib.sha256()
                for part in self._parts:
                    whole.update(part.data)
                self._hash = whole.hexdigest()
            return Head(self._number, self._branch, self._steps(), self._members,
                        sum(map(len, self._parts)), self._hash)

    def chunk(self, age: tuple[int, int], at: int) -> bytes | None:
        """Give some bytes of the state of an age; None if it is another one by now."""
        with self._lock:
            if age != age_of(self._branch, self._number):
                return None
            for part in self._parts:
                if at < len(part):
                    return part[at:at + CHUNK_BYTES].tobytes()
                at -= len(part)
            return b""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback for a client that went away."""


class _Handler(socketserver.StreamRequestHandler):
    server: StateServer

    def handle(self) -> None:
        asked = json.loads(self.rfile.readline(LINE_BYTES))
        if not hmac.compare_digest(str(asked["token"]), self.server.token):
            return
        head = self.server.head()
        self.wfile.write(json.dumps(asdict(head)).encode() + b"\n")
        at = asked.get("at")
        while at is not None and (sent := self.server.chunk(head.age, at)):
            self.wfile.write(sent)
            at += len(sent)


def take_newest(peers: Mapping[int, Any], token: str, newer_than: int,
                timeout_s: float, branch: str = "") -> tuple[Head, bytes] | None:
    """Take the newest state, of a round after ``newer_than`` of a branch; None if no peer answers.

    Waits while peers answer but have none so new, since they may be in that round. Raises
    TimeoutError.
    """
    came, wanted = bytearray(), None
    limit_s = time.monotonic() + timeout_s
    while near := _by_distance(peers, token):
        head = max((head for head, _ in near), key=lambda one: one.age)
        if head.age > age_of(branch, newer_than):
            if wanted is None or not _is_same(head, wanted):
                came, wanted = bytearray(), head
            for found, peer in near:
                if _is_same(found, wanted):
                    with contextlib.suppress(OSError, ValueError, BrokenOffError):
                        return _take_rest(peer, token, wanted, came), bytes(came)
        if time.monotonic() > limit_s:
            raise TimeoutError(f"no peer could give a state of a round after {newer_than} within "
                               f"{timeout_s:g} s")
        time.sleep(AGAIN_S)  # a peer that is asked does not say when it has a newer one
    return None


def _is_same(one: Head, other: Head) -> bool:
    return (one.age, one.nbytes, one.sha256) == (other.age, other.nbytes, other.sha256)


def _by_distance(peers: Mapping[int, Any], token: str) -> list[tuple[Head, Any]]:
    """Give the states that peers have, the nearest first."""
    with ThreadPoolExecutor(max(1, min(len(peers), 32))) as pool:
        found = list(pool.map(lambda peer: _ask_head(peer, token), peers.values()))
    answered = [one for one in found if one is not None]
    return [(head, peer) for _, head, peer in sorted(answered, key=lambda one: one[0])]


def _ask_head(peer: Any, token: str) -> tuple[float, Head, Any] | None:
    begin_s = time.monotonic()
    try:
        with _connected(peer) as connection:
            round_trip_s = time.monotonic() - begin_s
            head = _read_head(connection.makefile("rb"), connection, token, None)
    except (OSError, ValueError, BrokenOffError):
        return None
    return round_trip_s, head, peer


def _connected(peer: Any) -> socket.socket:
    connection = socket.create_connection(tuple(peer), CONNECT_S)
    connection.settimeout(ANSWER_S)
    return connection


def _read_head(stream: Any, connection: socket.socket, token: str, at: int | None) -> Head:
    connection.sendall(json.dumps({"token": token, "at": at}).encode() + b"\n")
    said = json.loads(stream.readline(LINE_BYTES) or b"null")
    if not said:
        raise BrokenOffError
    return Head(**{**said, "members": tuple(said["members"])})


def _take_rest(peer: Any, token: str, wanted: Head, came: bytearray) -> Head:
    """Add what is missing to ``came``, all of it or what comes before the peer breaks off."""
    with _connected(peer) as connection:
        stream = connection.makefile("rb")
        head = _read_head(stream, connection, token, len(came))
        if not _is_same(head, wanted):
            raise BrokenOffError
        while len(came) < head.nbytes:
            chunk = stream.read1(min(CHUNK_BYTES, head.nbytes - len(came)))
            if not chunk:
                raise BrokenOffError
            came += chunk
    if hashlib.sha256(came).hexdigest() != head.sha256:
        came.clear()
        raise BrokenOffError
    return head
