"""torch's stores as places where ranks meet: of torch.distributed, at MASTER_ADDR, or in a file."""

from __future__ import annotations

import contextlib
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import DistNetworkError, FileStore, PrefixStore, TCPStore

from harp.lightcc.launch import read_master

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FIRST_PAUSE_S, LAST_PAUSE_S = 0.001, 0.2
"""Between two looks for a key; each pause is twice the one before."""


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


def round_of(store: Any, rank: int, ranks: int, env: Mapping[str, str] = os.environ) -> str:
    """Name the part of torchrun's store that this group of ours has alone; elsewhere it is all.

    torchrun's agent serves one store through all restarts of a job, and torch gives groups the
    names of those before them after `destroy_process_group`: addresses of processes that are gone
    stand there. So a part is of a restart, of a number of ranks, and of the number of times that
    a rank has come.
    """
    if not _agent_serves(env):
        return ""
    restart = f"harp/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}/{ranks}"
    return f"{restart}/{store.clone().add(f'{restart}/rank {rank} came', 1)}"


def in_part(store: Any, part: str) -> Any:
    """Give a part of a store, or all of it where the part has no name."""
    return PrefixStore(part, store) if part else store


def open_file(path: str, ranks: int, timeout_s: float) -> PatientStore:
    """Give the store in a file that all hosts see."""
    return PatientStore(FileStore(path, ranks), timedelta(seconds=timeout_s))


def open_master(env: Mapping[str, str], rank: int, ranks: int, timeout_s: float) -> PatientStore:
    """Give the store at MASTER_ADDR and MASTER_PORT; rank 0 serves it unless torchrun does."""
    address, port = read_master(env)
    timeout = timedelta(seconds=timeout_s)
    store = TCPStore(address, port, ranks, rank == 0 and not _agent_serves(env), timeout,
                     wait_for_workers=False, multi_tenant=True)
    return PatientStore(in_part(store, round_of(store, rank, ranks, env)), timeout)
