"""Which ranks of a host read each other's memory (`cnet/lightcc/peer_memory.h`).

A rank shows the others its process and a word; each tries whether it can read the word, and tells.
A rank that cannot read another's memory, since the kernel refuses or there is another process of
that number, gets its pieces as messages. HARP_SINGLE_COPY=0 has them all sent so.
"""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harp._cnet import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harp.net import Connection

log = logging.getLogger("harp.lightcc")
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


class Shown(NamedTuple):
    """What another process needs to read memory; ``struct harp_peer_memory``."""

    process: int
    word_at: int
    word: int


class SharedMemory:
    """What a rank shows to the ranks of its host, and what it sees of them."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.word = ffi.new("uint64_t *", secrets.randbits(64) | 1)
        """The mover withdraws it, as zero."""
        self._on = environment.get("HARP_SINGLE_COPY", "1") != "0"
        self._shown: dict[int, Shown] = {}
        self.answers: dict[int, Connection] = {}
        """Connections for answers to offers, one to each rank of the host."""
        self.reads: set[int] = set()
        """The ranks whose memory this one reads."""
        self.read_by: set[int] = set()
        """The ranks that read this one's memory."""

    def show(self) -> Shown:
        """Let others read, and say how."""
        if self._on and _YAMA.exists() and _YAMA.read_text().strip() == "1":
            lib.harp_peer_memory_allow()
        return Shown(os.getpid(), int(ffi.cast("uintptr_t", self.word)), self.word[0])

    def look(self, rank: int, shown: Shown) -> None:
        """Try to read what another rank has shown."""
        self._shown[rank] = shown
        read = lib.harp_peer_memory_read(self._of(rank), ffi.NULL, 0, 0) if self._on else None
        if read == lib.HARP_PEER_READ:
            self.reads.add(rank)
        else:
            log.debug("the memory of rank %d %s: its pieces come as messages", rank,
                      "cannot be read" if self._on else "is not read (HARP_SINGLE_COPY)")

    def _of(self, rank: int) -> Any:
        return ffi.new("struct harp_peer_memory *", self._shown[rank]._asdict())

    def seen_by(self, rank: int) -> None:
        """Another rank has said that it can read this one's memory."""
        if self._on:
            self.read_by.add(rank)

    def c_peers(self, ranks: int) -> Any:
        """Give the ``struct harp_mover_peer[]`` of a mover."""
        peers = ffi.new("struct harp_mover_peer[]", ranks)
        for rank, connection in self.answers.items():
            peers[rank].answers = connection.c_connection
            peers[rank].memory = self._of(rank)[0]
            peers[rank].reads = rank in self.read_by
        return peers
