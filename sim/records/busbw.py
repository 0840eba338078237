"""Rates of a collective as nccl-tests counts them.

Terms as in nccl-tests' PERFORMANCE page: *algbw* is size over time; *busbw* is algbw times a factor
that makes it comparable with a link's rate whatever the number of ranks. The size is the larger of
what a rank sends into and receives from the collective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.records.results import CollectiveRow

if TYPE_CHECKING:
    from sim.records.results import Limit

_SPLIT = ("allgather", "reducescatter", "alltoall")
"""Collectives whose count is a rank's own share of the size."""
_ELEMENT_BYTES = {"int8": 1, "uint8": 1, "half": 2, "bfloat16": 2, "float": 4, "int32": 4,
                  "double": 8, "int64": 8}


def busbw_factor(collective: str, ranks: int) -> float:
    """Return busbw / algbw as nccl-tests defines it; ValueError for an unknown collective."""
    share = (ranks - 1) / ranks
    factors = {"allreduce": 2 * share, "allgather": share, "reducescatter": share,
               "alltoall": share, "broadcast": 1.0, "reduce": 1.0, "sendrecv": 1.0}
    name = plain_name(collective)
    if name not in factors:
        raise ValueError(f"unknown collective {collective!r}, not one of {', '.join(factors)}")
    return factors[name]


def collective_row(collective: str, algorithm: str, *, ranks: int, size_bytes: int, time_s: float,
                   datatype: str = "float", choice: str = "",
                   limits: tuple[Limit, ...] = ()) -> CollectiveRow:
    """Return the row of one collective that took ``time_s`` seconds, as nccl-tests counts."""
    elements = size_bytes // _ELEMENT_BYTES[datatype]
    count = elements // ranks if plain_name(collective) in _SPLIT else elements
    algbw = size_bytes / time_s
    return CollectiveRow(algorithm, size_bytes, count, time_s, algbw,
                         algbw * busbw_factor(collective, ranks), choice, limits=limits)


def plain_name(collective: str) -> str:
    """Name of a collective without dashes, underscores and capitals."""
    return collective.replace("_", "").replace("-", "").lower()
