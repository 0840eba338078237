"""The parameters of a plan, checked once; a wrong one is a ValueError of one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.window import NCCL_WINDOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harp.collectives.ir import Ranks

CHUNK_BYTES = NCCL_WINDOW.slot_bytes
"""Chunk of the pipelined trees."""
INDEX_BYTES = 4
"""Index of a sparse element on the wire: int32, as LightCC, DGC and GRACE send it."""


@dataclass(frozen=True, eq=False)
class Request:
    """The parameters of all builders; each uses some. ``make_plan`` explains them."""

    ranks: int
    nbytes: int
    unit_bytes: int = 4
    group: int | None = None
    order: Sequence[int] | NDArray[np.integer] | None = None
    root: int = 0
    ratio: float = 0.01
    value_bytes: int | None = None
    chunk_bytes: int = CHUNK_BYTES
    bits: int = 8

    def __post_init__(self) -> None:
        """Refuse what no plan can mean."""
        for name, least in (("ranks", 1), ("nbytes", 0), ("unit_bytes", 1), ("chunk_bytes", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least {least}")
        if self.nbytes % self.unit_bytes:
            raise ValueError(f"nbytes {self.nbytes} is not a whole number of elements of "
                             f"{self.unit_bytes} bytes (unit_bytes)")
        if not 0 <= self.root < self.ranks:
            raise ValueError(f"root {self.root} is not one of the ranks 0 to {self.ranks - 1}")
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio is {self.ratio}, but must be above 0 and at most 1")
        if self.value_bytes is not None and self.value_bytes < 1:
            raise ValueError(f"value_bytes is {self.value_bytes}, but must be at least 1")

    def placement(self) -> Ranks:
        """``order`` as an array: the rank at each position."""
        if self.order is None:
            return np.arange(self.ranks, dtype=np.int32)
        order = np.asarray(self.order)
        if order.shape != (self.ranks,) or not np.array_equal(np.sort(order),
                                                              np.arange(self.ranks)):
            raise ValueError(f"order must name each of the ranks 0 to {self.ranks - 1} once")
        return order.astype(np.int32)

    def hosts(self, plan: str) -> Ranks:
        """Give the placement as a matrix, one row a group (host) of ``group`` ranks."""
        if self.group is None:
            raise ValueError(f"plan {plan!r} needs group, the number of ranks of a host")
        if self.group < 1 or self.ranks % self.group:
            fitting = [g for g in range(1, self.ranks + 1) if self.ranks % g == 0]
            nearest = min(fitting, key=lambda g: (abs(g - (self.group or 0)), g))
            raise ValueError(f"group size {self.group} does not divide the {self.ranks} ranks; "
                             f"the nearest that does is {nearest}")
        return self.placement().reshape(-1, self.group)

    @property
    def share(self) -> Fraction:
        """``ratio`` as the decimal that was written, not the nearest float: 0.29 of 100 is 29."""
        return Fraction(repr(float(self.ratio)))

    @property
    def pair_bytes(self) -> int:
        """Bytes of a (value, index) pair on the wire."""
        return (self.value_bytes or self.unit_bytes) + INDEX_BYTES
