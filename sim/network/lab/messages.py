"""What the laboratory and the processes of its hosts tell one another, as pickles in a pipe."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from harp.collectives.plan import Plan
    from harp.collectives.window import Window
    from sim.network.lab.pace import EdgePace

FIRST_PORT = 7000
"""TCP port at which GPU 0 awaits its peers; the others follow."""


class EdgeKey(NamedTuple):
    """One direction between two GPUs, on one channel of one of the runs at a time (a lane)."""

    lane: int
    channel: int
    src: int
    dst: int


@dataclass(frozen=True)
class Setup:
    """The first thing that a host hears."""

    stack: str
    """``tcp`` or ``harp``."""
    sockets: int
    window: Window
    addresses: dict[int, str]
    """NIC of every GPU of the cluster."""
    own: tuple[int, ...]
    """GPUs of this host."""


@dataclass(frozen=True)
class Ready:
    """A host's first answer: handles at which its GPUs' engines await peers."""

    handles: dict[int, bytes]


@dataclass(frozen=True)
class Peers:
    """The handles of all hosts."""

    handles: dict[int, bytes]


class Part(NamedTuple):
    """One rank of one channel that runs on this host."""

    channel: int
    rank: int


@dataclass(frozen=True)
class Job:
    """A plan to run now."""

    number: int
    lane: int
    plan: Plan
    window: Window
    placement: tuple[tuple[int, ...], ...]
    """For each channel the GPU of each rank."""
    parts: tuple[Part, ...]
    paces: dict[tuple[int, int, int], EdgePace]
    """Of edges (channel, src, dst) that this host has not met yet."""


@dataclass(frozen=True)
class Done:
    """All of this host's parts are through; or why not."""

    number: int
    late: float = 0.0
    """Share of the time by which the process came late to what it had to do."""
    error: str = ""


def send_message(file: IO[bytes], message: Any) -> None:
    """Write a message."""
    data = pickle.dumps(message)
    file.write(struct.pack("!I", len(data)) + data)
    file.flush()


def read_message(file: IO[bytes]) -> Any:
    """Read a message; EOFError where the other end is gone."""
    head = file.read(4)
    if len(head) < 4:
        raise EOFError
    return pickle.loads(file.read(struct.unpack("!I", head)[0]))
