"""Messages between the laboratory and the processes of its hosts, as pickles in a pipe."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from harp.collectives.collective_plan import Plan
    from harp.collectives.window import Window
    from sim.network.lab.pace import EdgePace


class EdgeKey(NamedTuple):
    """One direction between two GPUs, on one channel of one of the runs at a time (a lane)."""

    lane: int
    channel: int
    src: int
    dst: int


class EdgeFlows(NamedTuple):
    """The flows of an edge between hosts: addresses of both NICs, and a source port each.

    All lead to `harp.routing.hashes.ROCE_PORT`, as those of the simulators.
    """

    src: str
    dst: str
    ports: tuple[int, ...]


@dataclass(frozen=True)
class Setup:
    """The first thing that a host hears."""

    stack: str
    """``tcp`` or ``harp``."""
    paths: int
    """The most flows that an edge has."""
    congestion: str | None
    """Congestion control of kernel TCP."""
    slower: int
    """Factor that the laboratory's clock is slower by than the host's."""
    window: Window
    addresses: tuple[str, ...]
    """NICs of this host."""
    own: tuple[int, ...]
    """GPUs of this host."""


@dataclass(frozen=True)
class Ready:
    """A host's first answer: handles at which its engines await peers, by their NICs' addresses."""

    handles: dict[str, bytes]


@dataclass(frozen=True)
class Peers:
    """The handles of all hosts."""

    handles: dict[str, bytes]


class Part(NamedTuple):
    """One rank of one channel that runs on this host."""

    channel: int
    rank: int


@dataclass(frozen=True)
class Connect:
    """Make the connections of these edges now; `Done` follows."""

    number: int
    lane: int
    edges: tuple[tuple[int, int, int], ...]
    """Channel, and the GPUs that send and receive."""
    paces: dict[tuple[int, int, int], EdgePace]
    flows: dict[tuple[int, int, int], EdgeFlows]
    """Of those edges that leave a host."""


@dataclass(frozen=True)
class Job:
    """A plan to run now."""

    number: int
    lane: int
    plan: Plan
    window: Window
    messages: float
    """Messages of a piece of the plan for the network."""
    placement: tuple[tuple[int, ...], ...]
    """For each channel the GPU of each rank."""
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Done:
    """All of this host's parts are through; or why not."""

    number: int
    late: float = 0.0
    """Lateness of the process, as a share of the time."""
    error: str = ""
    asked_s: dict[int, float] = field(default_factory=dict)
    """Demand on each resource of this host so far, by the wall clock."""


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
