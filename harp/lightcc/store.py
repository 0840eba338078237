"""The rendezvous store: keys and values at an address that all ranks know.

``harp run`` holds a `StoreServer` and passes its address and a token in HARP_STORE,
``HOST:PORT/TOKEN`` (an IPv6 address in brackets); without it torch's TCPStore at MASTER_ADDR and
MASTER_PORT does the same. Each request has its own connection, with one line of JSON each way, so
that a ``get`` may wait while others go on. HARP_STORE may also be ``file:PATH``: a file that all
hosts see and no other job uses.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import socketserver
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harp.lightcc.launch import read_master

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import timedelta

    from harp.lightcc.peers import Store

VARIABLE = "HARP_STORE"
FILE = "file:"
LINE_BYTES = 1 << 20
FIRST_PAUSE_S, LAST_PAUSE_S = 0.001, 0.2
"""Between two looks for a key; each pause is twice the one before."""


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


class PatientStore:
    """A store of torch's that waits as long as a group does.

    It is a copy with a connection of its own: a thread that waits for a store of torch's keeps
    other threads from using it. When the connection has ended torch is not asked again: it writes
    pages about each try.
    """

    def __init__(self, store: Any, timeout: timedelta) -> None:
        self._given = store  # at the rank that serves the others it is the server
        self._why_gone = ""
        with self._naming_holder():
            self._store, self._timeout_s = store.clone(), timeout.total_seconds()

    def set(self, key: str, value: bytes) -> None:
        """Set a key for all ranks."""
        with self._naming_holder():
            self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """Wait until the key is set.

        By looks: a wait of torch's that ends without the key writes two lines of warning, and one
        that does not end keeps the process from ending.
        """
        end_s, pause_s = time.monotonic() + self._timeout_s, FIRST_PAUSE_S
        while not self.has(key):
            if time.monotonic() > end_s:
                raise TimeoutError(f"no rank has set {key} in the store within "
                                   f"{self._timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
        with self._naming_holder():
            return bytes(self._store.get(key))

    def has(self, key: str) -> bool:
        """Whether the key is set."""
        with self._naming_holder():
            return bool(self._store.check([key]))

    @contextlib.contextmanager
    def _naming_holder(self) -> Iterator[None]:
        """Say in one sentence that the connection has ended."""
        from torch.distributed import DistNetworkError

        if self._why_gone:
            raise ConnectionError(self._why_gone)
        try:
            yield
        except DistNetworkError:
            store = self._given
            while hasattr(store, "underlying_store"):
                store = store.underlying_store
            self._why_gone = f"{_holder(store.host, store.port)} is gone"
            raise ConnectionError(self._why_gone) from None


def _holder(host: str, port: int, env: Mapping[str, str] = os.environ) -> str:
    """Name a TCPStore: rank 0 serves the one at MASTER_PORT unless torchrun does."""
    if env.get("MASTER_PORT") == str(port) and not _agent_serves(env):
        return "rank 0, which has the store,"
    return f"the store at {host}:{port}"


def _agent_serves(env: Mapping[str, str]) -> bool:
    return env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def open_store(env: Mapping[str, str], rank: int, ranks: int, timeout_s: float) -> Store:
    """Give the store that the launcher of this process provides."""
    if ranks == 1:
        return MemoryStore()
    named = env.get(VARIABLE, "")
    if named and not named.startswith(FILE):
        return StoreClient(named, timeout_s)
    if named:
        _check_file(named)
    from datetime import timedelta

    from torch.distributed import FileStore, TCPStore

    timeout = timedelta(seconds=timeout_s)
    if named:
        return PatientStore(FileStore(named.removeprefix(FILE), ranks), timeout)
    address, port = read_master(env)
    return PatientStore(TCPStore(address, port, ranks, rank == 0 and not _agent_serves(env),
                                 timeout, wait_for_workers=False, multi_tenant=True), timeout)


def _check_file(named: str) -> None:
    """Refuse a file that nobody can make: torch tries it for five minutes without a word."""
    file = Path(named.removeprefix(FILE))
    if not file.parent.is_dir() or file.is_dir():
        raise ValueError(f"{VARIABLE} is {named!r}; allowed after {FILE} is a file, new or of this "
                         "job, in a directory that all ranks see")
