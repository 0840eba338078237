"""The fluid network engine (C, ``fluid.h``) for numpy: flows share resources max-min fairly.

>>> import numpy as np
>>> net = Fluid(np.array([10.0]))                       # one resource of 10 units/s
>>> route = net.add_routes(np.array([0, 1]), np.array([0]))
>>> ids = net.start(np.array([route, route]), np.array([10.0, 20.0]))
>>> net.run()[1]                                        # both at 5/s until the first is done
array([2.])
>>> net.run()[1]
array([3.])
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.network.flow._fluid import ffi, lib

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

EXACT = 1e-9
"""Default tolerance: completions closer than this share of a flow's age are one event."""
CEILING: int = lib.FLUID_CEILING
"""Stands for the flow's own ceiling among the resources that hold it."""


_NO_IDS, _NO_TIMES = np.empty(0, np.int32), np.empty(0, np.float64)


def _array(values: ArrayLike, dtype: Any, shape: int | None = None) -> NDArray[Any]:
    array = np.ascontiguousarray(values, dtype=dtype)
    if shape is not None and array.shape != (shape,):
        array = np.ascontiguousarray(np.broadcast_to(array, (shape,)))
    return array


def _pointer(array: NDArray[Any] | None, ctype: str) -> Any:
    return ffi.NULL if array is None else ffi.from_buffer(ctype, array, require_writable=False)


class Fluid:
    """Weighted max-min fair flows over resources, in continuous time.

    Args:
        capacity: float64[resources], units per second of each resource; 0 means that it is down.
        tolerance: completions within this share of the first one's age are reported together.

    Attributes:
        handle: the C object, for engines that drive it.
    """

    def __init__(self, capacity: ArrayLike, tolerance: float = EXACT) -> None:
        capacities = _array(capacity, np.float64)
        if not np.all(np.isfinite(capacities) & (capacities >= 0)):
            raise ValueError("capacities must be finite and not negative")
        if not tolerance >= 0:
            raise ValueError("tolerance must not be negative")
        self.resources = len(capacities)
        self._held: NDArray[np.int32] | None = None
        pointer = lib.fluid_new(self.resources, _pointer(capacities, "double[]"), tolerance)
        if pointer == ffi.NULL:
            raise MemoryError
        self.handle = ffi.gc(pointer, lib.fluid_free)

    @staticmethod
    def _check(code: float, what: str) -> None:
        if code == lib.FLUID_ENOMEM:
            raise MemoryError
        if code < 0:
            raise ValueError(what)

    def add_routes(self, ptr: ArrayLike, resources: ArrayLike,
                   coefficients: ArrayLike | None = None) -> int:
        """Add routes in CSR form and return the id of the first.

        Args:
            ptr: int64[n + 1]; route ``i`` crosses ``resources[ptr[i]:ptr[i + 1]]``, all distinct.
            resources: int32[hops].
            coefficients: float64[hops], units of the resource that one unit of a flow consumes.
        """
        ptrs, hops = _array(ptr, np.int64), _array(resources, np.int32)
        shares = None if coefficients is None else _array(coefficients, np.float64)
        if len(ptrs) < 1 or ptrs[0] < 0 or ptrs[-1] > len(hops):
            raise ValueError("ptr must run from 0 to the number of hops")
        if shares is not None and len(shares) != len(hops):
            raise ValueError("one coefficient a hop")
        first = lib.fluid_add_routes(
            self.handle, len(ptrs) - 1, _pointer(ptrs, "int64_t[]"), _pointer(hops, "int32_t[]"),
            _pointer(shares, "double[]"))
        self._check(first, "a route has an unknown resource or a coefficient that is not positive")
        return int(first)

    def start(self, routes: ArrayLike, amounts: ArrayLike, *,
              weights: ArrayLike | None = None,
              ceilings: ArrayLike | None = None, at_s: ArrayLike | None = None,
              ) -> NDArray[np.int32]:
        """Start flows and return their ids, int32[n]; a completed flow's id may be used again.

        Args:
            routes: int32[n], or one for all.
            amounts: float64[n] units to move.
            weights: share of a bottleneck relative to other flows; 1 if not given.
            ceilings: units per second that a flow never exceeds; none if not given.
            at_s: start times; now if not given or in the past.
        """
        n = max(np.size(amounts), np.size(routes))
        figures = [None if values is None else _array(values, np.float64, n)
                   for values in (amounts, weights, ceilings, at_s)]
        ids = np.empty(n, dtype=np.int32)
        code = lib.fluid_start(
            self.handle, n, _pointer(_array(routes, np.int32, n), "int32_t[]"),
            *[_pointer(values, "double[]") for values in figures],
            ffi.from_buffer("int32_t[]", ids))
        self._check(code, "a flow needs a known route, a finite amount >= 0, a weight > 0, "
                          "a ceiling > 0 and a finite start time")
        return ids

    def run(self, until_s: float = math.inf) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Move the clock to the next completions, at most to ``until_s``.

        Returns:
            ids int32[k] and completion times float64[k]; empty when none happens by ``until_s``.
        """
        count = lib.fluid_run(self.handle, until_s)
        self._check(count, "run failed")
        if count == 0:
            return _NO_IDS, _NO_TIMES
        ids = np.frombuffer(ffi.buffer(lib.fluid_done_id(self.handle), count * 4), np.int32)
        times = np.frombuffer(ffi.buffer(lib.fluid_done_s(self.handle), count * 8), np.float64)
        return ids.copy(), times.copy()

    def drain(self) -> float:
        """Run until nothing can complete any more and return the time of the last completion."""
        last_s = self.now_s
        while lib.fluid_run(self.handle, math.inf) > 0:
            last_s = self.now_s
        return last_s

    @property
    def now_s(self) -> float:
        """The clock, in seconds."""
        return float(lib.fluid_now_s(self.handle))

    @property
    def next_s(self) -> float:
        """Time of the next start or completion; infinite when there is none."""
        return float(lib.fluid_next_s(self.handle))

    @property
    def flows(self) -> int:
        """Flows that have not completed."""
        return int(lib.fluid_flows(self.handle))

    def effort(self) -> tuple[int, int]:
        """Number of solutions of the rates, and of the flows that they visited in all."""
        counts = ffi.new("int64_t[2]")
        lib.fluid_effort(self.handle, counts, counts + 1)
        return int(counts[0]), int(counts[1])

    def set_capacity(self, resource: int, capacity: float) -> None:
        """Change a capacity from now on; 0 stops every flow that crosses the resource."""
        self._check(lib.fluid_set_capacity(self.handle, resource, capacity),
                    f"resource {resource} is unknown or capacity {capacity} is not finite and >= 0")

    def reroute(self, flows: ArrayLike, routes: ArrayLike) -> None:
        """Put flows that have not completed on other routes; what they have moved stays moved."""
        ids = np.atleast_1d(np.asarray(flows, np.int32))
        wanted = np.broadcast_to(np.asarray(routes, np.int32), ids.shape)
        for flow, route in zip(ids.tolist(), wanted.tolist(), strict=True):
            self._check(lib.fluid_reroute(self.handle, flow, route),
                        f"no flow {flow} or route {route}")

    def cancel(self, flow: int) -> float:
        """Take a flow out before it completes and return the amount that it had left."""
        left = lib.fluid_cancel(self.handle, flow)
        self._check(left, f"no flow {flow}")
        return float(left)

    def state(self, flows: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Rates (units per second) and amounts left of flows that have not completed."""
        ids = np.atleast_1d(_array(flows, np.int32))
        rate, left = np.empty(len(ids)), np.empty(len(ids))
        code = lib.fluid_flow_state(self.handle, len(ids), _pointer(ids, "int32_t[]"),
                                    ffi.from_buffer("double[]", rate),
                                    ffi.from_buffer("double[]", left))
        self._check(code, "a flow is unknown or has completed")
        return rate, left

    def holding(self, flows: ArrayLike) -> NDArray[np.int32]:
        """Bottlenecks of the one of ``flows`` that ends last at the present rates.

        The saturated resources of its route, int32[k], and `CEILING` before them where it runs at
        its own. Flows that have completed are passed over.
        """
        ids = np.atleast_1d(_array(flows, np.int32))
        if self._held is None:
            self._held = np.empty(self.resources + 1, np.int32)
        count = lib.fluid_holding(self.handle, len(ids), _pointer(ids, "int32_t[]"),
                                  ffi.from_buffer("int32_t[]", self._held), len(self._held))
        self._check(count, "a flow is unknown")
        return self._held[:count]

    def load(self) -> NDArray[np.float64]:
        """Units per second in use of each resource, float64[resources]."""
        load = np.empty(self.resources)
        lib.fluid_load(self.handle, ffi.from_buffer("double[]", load))
        return load

    def carried(self) -> NDArray[np.float64]:
        """Units that each resource has carried since the beginning, float64[resources]."""
        carried = np.empty(self.resources)
        lib.fluid_carried(self.handle, ffi.from_buffer("double[]", carried))
        return carried
