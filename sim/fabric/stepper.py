"""The step engine (C, ``steps.h``) for numpy: messages of a collective as flows of a `Fluid`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.fabric._fluid import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from sim.fabric.fluid import Fluid

    Ids = NDArray[np.int32]
    Floats = NDArray[np.float64]


class Messages(NamedTuple):
    """All messages of one step as arrays of one length."""

    src: Ids
    """Ranks."""
    dst: Ids
    route: Ids
    """Routes of the `Fluid`."""
    amount: Floats
    """Units to move."""
    ceiling: Floats
    """Units per second that a message never exceeds; may be infinite."""
    delay_s: Floats
    """From when both ends have begun the step to when the first unit moves."""


class Effort(NamedTuple):
    """What a run took."""

    messages: int
    batches: int
    """Times at which messages completed."""
    most_held: int
    """The most steps that were held at once."""


def run_messages(net: Fluid, ranks: int, steps: int,
                 load: Callable[[int], Messages]) -> tuple[Floats, Effort]:
    """Run ``steps`` steps over ``ranks`` ranks from now on; ``load(step)`` gives each in turn.

    Returns:
        When each rank's last message completed, float64[ranks], and what it took.

    Raises:
        RuntimeError: messages are left that can never complete (a resource is down).
        ValueError: a message names an unknown rank or route.

    """
    pointer = lib.steps_new(net.handle, ranks, steps)
    if pointer == ffi.NULL:
        raise MemoryError
    engine, held = ffi.gc(pointer, lib.steps_free), 0
    while (code := _checked(lib.steps_run(engine))) == lib.STEPS_LOAD:
        columns = load(lib.steps_loaded(engine))
        _checked(lib.steps_load(engine, len(columns.src), *(
            ffi.from_buffer("double[]" if column.dtype == np.float64 else "int32_t[]", column)
            for column in map(np.ascontiguousarray, columns))))
        held = max(held, lib.steps_held(engine))
    if code == lib.STEPS_STUCK:
        raise RuntimeError("messages are left that can never complete: a resource is down")
    counts = ffi.new("int64_t[2]")
    lib.steps_effort(engine, counts, counts + 1)
    ends_s = np.frombuffer(ffi.buffer(lib.steps_rank_s(engine), ranks * 8), np.float64)
    return ends_s.copy(), Effort(int(counts[0]), int(counts[1]), held)


def _checked(code: int) -> int:
    if code == lib.FLUID_ENOMEM:
        raise MemoryError
    if code < 0:
        raise ValueError("a message names an unknown rank or route, or an amount below 0")
    return code
