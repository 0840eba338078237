"""The rendezvous store: keys and values at an address that all ranks know.

``harp run`` holds a `StoreServer` and passes its address and a token in HARP_STORE,
``HOST:PORT/TOKEN`` (an IPv6 address in brackets); without it torch's TCPStore at MASTER_ADDR and
MASTER_PORT does the same (`harp.lightcc.torch_base.torch_store`). Each request has its own
connection, with one line of JSON each way, so that a ``get`` may wait while others go on.
HARP_STORE may also be ``file:PATH``: a file that all hosts see and no other job uses.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import socketserver
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harp.lightcc.peers import Store

VARIABLE = "HARP_STORE"
FILE = "file:"
LINE_BYTES = 1 << 20


class MemoryStore:
    """Keys and values within a process; any thread."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        """Set a key for all ranks."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """Wait until the key is set."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._values)
            return self._values[key]

    def has(self, key: str) -> bool:
        """Whether the key is set."""
        with self._changed:
            return key in self._values

    def settle(self, key: str, value: bytes) -> bytes:
        """Set a key unless it is set, and return its value: the first caller decides for all."""
        with self._changed:
            self._changed.notify_all()
            return self._values.setdefault(key, value)

    def find(self, prefix: str) -> list[str]:
        """Return the rest of each key that begins with ``prefix``."""
        with self._changed:
            return [key[len(prefix):] for key in self._values if key.startswith(prefix)]


class StoreServer(socketserver.ThreadingTCPServer):
    """A `MemoryStore` for other processes."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, address: str = "127.0.0.1") -> None:
        """``address``: where it listens; "" is all addresses, of both families."""
        self._both = not address and socket.has_dualstack_ipv6()
        if self._both or ":" in address:
            self.address_family = socket.AF_INET6
        super().__init__((address, 0), _Handler)
        self.store = MemoryStore()
        self.token = secrets.token_hex(16)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def server_bind(self) -> None:
        """Bind the socket, to both families where it listens at all addresses."""
        if self._both:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def variable(self, host: str) -> str:
        """Give the value of HARP_STORE for processes that reach this one as ``host``."""
        host = f"[{host}]" if ":" in host else host
        return f"{host}:{self.server_address[1]}/{self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback for a client that went away."""


class _Handler(socketserver.StreamRequestHandler):
    server: StoreServer

    def handle(self) -> None:
        asked = json.loads(self.rfile.readline(LINE_BYTES))
        if not hmac.compare_digest(str(asked["token"]), self.server.token):
            return
        store: MemoryStore = self.server.store
        answer: str | bool = ""
        if asked.get("has"):
            answer = store.has(asked["key"])
        elif asked.get("settle"):
            answer = store.settle(asked["key"], bytes.fromhex(asked["value"])).hex()
        elif asked["value"] is not None:
            store.set(asked["key"], bytes.fromhex(asked["value"]))
        else:
            answer = store.get(asked["key"]).hex()
        self.wfile.write(json.dumps(answer).encode() + b"\n")


class StoreClient:
    """A client of a `StoreServer`."""

    def __init__(self, variable: str, timeout_s: float) -> None:
        where, _, self._token = variable.partition("/")
        host, _, port = where.rpartition(":")
        if not (host and port.isdigit() and self._token):
            raise ValueError(f"{VARIABLE} is {variable!r}; allowed are HOST:PORT/TOKEN, as "
                             "harp run sets it, and file:PATH")
        self._address, self._timeout_s = (host.strip("[]"), int(port)), timeout_s

    def set(self, key: str, value: bytes) -> None:
        """Set a key for all ranks."""
        self._send_request({"key": key, "value": value.hex()})

    def get(self, key: str) -> bytes:
        """Wait until the key is set. Raises TimeoutError."""
        return bytes.fromhex(self._send_request({"key": key, "value": None}))

    def has(self, key: str) -> bool:
        """Whether the key is set."""
        return bool(self._send_request({"key": key, "has": True}))

    def settle(self, key: str, value: bytes) -> bytes:
        """Set a key unless it is set; give what it is then."""
        return bytes.fromhex(self._send_request({"key": key, "value": value.hex(),
                                                 "settle": True}))

    def _send_request(self, request: dict[str, Any]) -> Any:
        with socket.create_connection(self._address, self._timeout_s) as connection:
            connection.sendall(json.dumps({"token": self._token, **request}).encode() + b"\n")
            line = connection.makefile("rb").readline()
        if not line:
            raise ConnectionError(f"the store at {self._address[0]}:{self._address[1]} has ended")
        return json.loads(line)


class PrefixStore:
    """A part of a store: its keys begin with ``prefix``."""

    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix, self._store = prefix, store

    def set(self, key: str, value: bytes) -> None:
        """Set a key for all ranks."""
        self._store.set(self._prefix + key, value)

    def get(self, key: str) -> bytes:
        """Wait until the key is set."""
        return bytes(self._store.get(self._prefix + key))

    def has(self, key: str) -> bool:
        """Whether the key is set."""
        return self._store.has(self._prefix + key)


def open_store(env: Mapping[str, str], rank: int, ranks: int, timeout_s: float) -> Store:
    """Give the store that the launcher of this process provides."""
    named = env.get(VARIABLE, "")
    if named and not named.startswith(FILE):
        return StoreClient(named, timeout_s)  # for one rank, too: an elastic job may grow
    if ranks == 1:
        return MemoryStore()
    if named:
        _check_file(named)
    from harp.lightcc.torch_base.torch_store import open_file, open_master

    if named:
        return open_file(named.removeprefix(FILE), ranks, timeout_s)
    return open_master(env, rank, ranks, timeout_s)


def _check_file(named: str) -> None:
    """Refuse a file that nobody can make: torch tries it for five minutes without a word."""
    file = Path(named.removeprefix(FILE))
    if not file.parent.is_dir() or file.is_dir():
        raise ValueError(f"{VARIABLE} is {named!r}; allowed after {FILE} is a file, new or of this "
                         "job, in a directory that all ranks see")
