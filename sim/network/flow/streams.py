"""The stream engine (C, ``streams.h``) for numpy: pieces of a collective as flows of a `Fluid`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim.network.flow._fluid import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from sim.network.flow.fluid import Fluid

    Ids = NDArray[np.int32]
    Floats = NDArray[np.float64]


class StageEdges(NamedTuple):
    """All edges of one stage as arrays of one length."""

    src: Ids
    """Ranks."""
    dst: Ids
    route: Ids
    """Routes of the `Fluid`."""
    amount: Floats
    """Units of a piece."""
    ceiling: Floats
    """Units per second that a piece never exceeds; may be infinite."""
    delay_s: Floats
    """From a piece's hand-over to when it could move."""
    message_s: Floats
    """From when it could move, and no other does, to when its first unit does."""


class Stage(NamedTuple):
    """Edges, the pieces that each of them carries, and which edge waits for which."""

    edges: StageEdges
    pieces: int
    lag: int
    """A piece waits for the one ``lag`` pieces earlier on the edges that feed it."""
    source: Ids
    """Pairs of edges: ``source[i]`` feeds ``target[i]``."""
    target: Ids


class Effort(NamedTuple):
    """Times of a run."""

    pieces: int
    batches: int
    """Times at which pieces arrived."""
    most_held: int
    """The most stages that were held at once."""


def run_stages(net: Fluid, ranks: int, stages: int, window: int,
               load: Callable[[int], Stage]) -> tuple[Floats, Effort]:
    """Run ``stages`` stages over ``ranks`` ranks from now on; ``load(stage)`` gives each in turn.

    Returns:
        When each rank's last piece arrived, float64[ranks], and what it took.

    Raises:
        RuntimeError: pieces are left that can never complete (a resource is down).
        ValueError: an edge names an unknown rank or route.

    """
    pointer = lib.streams_new(net.handle, ranks, stages, window)
    if pointer == ffi.NULL:
        raise MemoryError
    engine, held = ffi.gc(pointer, lib.streams_free), 0
    while (code := _checked(lib.streams_run(engine))) == lib.STREAMS_LOAD:
        stage = load(lib.streams_loaded(engine))
        _checked(lib.streams_load(
            engine, len(stage.edges.src), *(_array(column) for column in stage.edges),
            stage.pieces, stage.lag,
            len(stage.source), _array(stage.source), _array(stage.target)))
        held = max(held, lib.streams_held(engine))
    if code == lib.STREAMS_STUCK:
        raise RuntimeError("messages are left that can never complete: a resource is down")
    counts = ffi.new("int64_t[2]")
    lib.streams_effort(engine, counts, counts + 1)
    ends_s = np.frombuffer(ffi.buffer(lib.streams_rank_s(engine), ranks * 8), np.float64)
    return ends_s.copy(), Effort(int(counts[0]), int(counts[1]), held)


def _array(column: NDArray[Any]) -> object:
    kind = "double[]" if column.dtype == np.float64 else "int32_t[]"
    return ffi.from_buffer(kind, np.ascontiguousarray(column))


def _checked(code: int) -> int:
    if code == lib.FLUID_ENOMEM:
        raise MemoryError
    if code < 0:
        raise ValueError("an edge names an unknown rank or route, or an amount below 0")
    return code
