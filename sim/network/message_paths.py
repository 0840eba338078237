"""Resources and stages that messages use, as `sim.network.transport` finds them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harp.collectives.protocol import Protocol
    from sim.network.nccl_limits import Limits

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Stages:
    """Stages of n edges between hosts: the sending host, each link, the receiving host.

    Each link and the receiving host take a whole frame before the next stage does; the sender hands
    over a burst. Times are those of an idle network, and 0 for edges inside a host.
    """

    frame: float
    """Payload of a full frame."""
    burst: float
    """Payload that a sender hands over at once."""
    sender_s: Floats
    """Seconds a byte, at the sending host's slowest resource."""
    links_s: Floats
    """The same of all links together."""
    slowest_link_s: Floats
    receiver_s: Floats

    def forwarding_s(self, nbytes: Floats) -> Floats:
        """Time of messages of this size beyond the time of all bytes at the slowest stage.

        All bytes pass the slower of the sender and the slowest stage behind it; before or after
        that a burst passes the other one. Each further stage passes a frame.
        """
        burst_s, frame_s = self._in_turn_s
        return np.asarray(np.minimum(nbytes, self.burst) * burst_s
                          + np.minimum(nbytes, self.frame) * frame_s)

    @cached_property
    def _in_turn_s(self) -> tuple[Floats, Floats]:
        """Seconds for each byte of a burst, and of a frame, that pass in turn."""
        after_s = np.maximum(self.slowest_link_s, self.receiver_s)
        return np.minimum(self.sender_s, after_s), self.links_s + self.receiver_s - after_s


def quicker_s(latency_s: Floats, protocol: Protocol) -> Floats:
    """Latencies between hosts by a protocol, of those by Simple; half of them stay at least."""
    return np.asarray(np.maximum(latency_s - protocol.saved_s, latency_s / 2))


@dataclass(frozen=True, eq=False)
class Paths:
    """Resources of n edges, as rows (edge, resource, units of it per payload byte).

    ``alpha_s``: latency of one message before its first byte counts; ``message_s``: the stacks'
    cost of one message; ``ceiling``: largest payload rate of an edge in bytes/s; ``inner``: whether
    it stays inside a host; ``proxied``: whether one thread of each process handles the messages of
    all its edges; ``helped``: whether helpers or the NIC move the bytes meanwhile; ``stages``: the
    stages between hosts, None if they take no time; ``socket_most``: bytes/s of one of the sockets
    over which NCCL splits a message; ``limits``: what NCCL holds collectives over these edges to,
    None if nothing.
    """

    edge: Ints
    resource: Ints
    coefficient: Floats
    alpha_s: Floats
    message_s: Floats
    ceiling: Floats
    inner: NDArray[np.bool_]
    proxied: bool = False
    helped: bool = False
    stages: Stages | None = None
    socket_most: float = math.inf
    limits: Limits | None = None

    @property
    def edges(self) -> int:
        """Number of edges."""
        return len(self.alpha_s)

    def without_rows(self) -> Paths:
        """Keep what belongs to whole edges."""
        return replace(self, edge=_NO_ROWS, resource=_NO_ROWS, coefficient=_NO_SHARES)

    def shared_s(self, capacity: Floats, share: Floats, turn: Ints | None = None) -> Floats:
        """Seconds in which each edge moves ``share`` bytes, while those of its turn do.

        Without ``turn`` all edges move at once.
        """
        row = self.resource
        if turn is not None and turn.any():
            key = turn[self.edge] * len(capacity) + self.resource
            row = np.unique(key, return_inverse=True)[1].reshape(-1)
        load = np.bincount(row, self.coefficient * share[self.edge])
        with np.errstate(divide="ignore", invalid="ignore"):
            own_s = load[row] / capacity[self.resource]
        seconds = share / self.ceiling
        np.maximum.at(seconds, self.edge, np.nan_to_num(own_s, posinf=0.0))
        return seconds

    def footprints(self, group: Ints, share: Floats) -> tuple[Ints, Ints, Floats]:
        """Routes (CSR) of flows that each move the edges of one group together.

        ``group`` numbers each edge's flow from 0 without gaps; an edge moves ``share`` bytes for
        each byte of its flow.
        """
        width = int(self.resource.max(initial=0)) + 1
        key = group[self.edge] * width + self.resource
        order = np.argsort(key, kind="stable")
        key = key[order]
        starts = np.flatnonzero(np.diff(key, prepend=-1))
        key = key[starts]
        weighted = (self.coefficient * share[self.edge])[order]
        coefficient = np.add.reduceat(weighted, starts) if len(starts) else weighted
        used = coefficient > 0
        key, coefficient = key[used], coefficient[used]
        groups = int(group.max(initial=-1)) + 1
        ptr = np.searchsorted(key // width, np.arange(groups + 1))
        return ptr, key % width, coefficient


_NO_ROWS, _NO_SHARES = np.empty(0, np.int64), np.empty(0)


def joined(parts: Sequence[Paths]) -> Paths:
    """Edges of several sets, one after the other, without their rows."""
    def column(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    return Paths(_NO_ROWS, _NO_ROWS, _NO_SHARES, column("alpha_s"), column("message_s"),
                 column("ceiling"), column("inner"), parts[0].proxied, parts[0].helped,
                 _joined_stages(parts), min(part.socket_most for part in parts),
                 parts[0].limits)


def _joined_stages(parts: Sequence[Paths]) -> Stages | None:
    known = next((part.stages for part in parts if part.stages is not None), None)
    if known is None:
        return None

    def column(name: str) -> Floats:
        return np.concatenate([np.zeros(part.edges) if part.stages is None else
                               getattr(part.stages, name) for part in parts])

    return Stages(known.frame, known.burst, column("sender_s"), column("links_s"),
                  column("slowest_link_s"), column("receiver_s"))
