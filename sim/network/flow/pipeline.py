"""The closed forms of a pipeline's times (C, ``pipeline.h``) for numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.network.flow._fluid import ffi, lib

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harp.collectives.ir import Feeds
    from harp.collectives.window import Cut

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


_NOBODY = np.empty(0, np.int64)


class EdgeTimes(NamedTuple):
    """Times of each edge; one array entry for each."""

    alpha_s: Floats
    """Latency of a piece, which pieces that follow one another overlap."""
    first_message_s: Floats
    """The stack's cost of a message, which they do not, while only its own hop is busy."""
    message_s: Floats
    """The same while all edges are."""
    first_s: Floats
    """Seconds per byte of its flow while only edges of the same hop are busy."""
    steady_s: Floats
    """The same while all edges are."""


class PhaseTimes(NamedTuple):
    """A phase's time beside the steady flow of its bytes."""

    latency_s: float
    filling_s: float
    """Bytes of the first pieces, while not all edges are busy."""
    message_s: float
    least_s: Floats
    """For each group: least seconds of a piece that the window allows; 0 where it does not bind."""


def phase_times(times: EdgeTimes, group: Ints, piece: Floats, feeds: Feeds, cut: Cut,
                slots: int, *, helped: bool = False) -> PhaseTimes:
    """Time a pipeline, several copies of it side by side (channels) included.

    Args:
        times: of each edge, copy after copy.
        group: number of each edge's ring or tree; rings are all of one size.
        piece: bytes of a piece of each ring's or tree's flow.
        feeds: data dependences within a copy.
        cut: pieces and lag.
        slots: pieces that an edge holds.
        helped: whether bytes move while the next message is handled.

    """
    least_s = np.empty(len(piece))
    order = np.argsort(feeds.level[feeds.target], kind="stable") if not cut.lag else _NOBODY
    source, target = feeds.source[order], feeds.target[order]
    edges = ffi.new("pipeline_edges *", [len(group), len(piece), _integers(group),
                                         *map(_floats, times), _floats(piece), cut.messages,
                                         helped])
    waits = ffi.new("pipeline_order *", [cut.pieces, cut.lag, slots, len(feeds.level), len(order),
                                         _integers(source), _integers(target)])
    found = ffi.new("pipeline_times *")
    if lib.pipeline_time(edges, waits, found, _floats(least_s)):
        raise MemoryError
    return PhaseTimes(found.latency_s, found.filling_s, found.message_s, least_s)


def _integers(values: Ints) -> object:
    return ffi.from_buffer("int64_t[]", values)


def _floats(values: Floats) -> object:
    return ffi.from_buffer("double[]", values)
