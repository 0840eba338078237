"""The registry of plans by name."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from harp.collectives import (
    alltoall,
    doubling,
    few_bits_plan,
    few_bits_ring_plan,
    halving,
    ring,
    topk,
    tree,
)
from harp.collectives.request import Request
from harp.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from harp.collectives.collective_plan import Plan

_BUILDERS: dict[str, Callable[[Request], Plan]] = {
    "ring": ring.ring,
    "tree": tree.double_binary_tree,
    "recursive-doubling": doubling.recursive_doubling,
    "halving-doubling": halving.halving_doubling,
    "2d": ring.two_level,
    "topk": topk.flat,
    "2d-topk": topk.sharded,
    "few-bits": few_bits_plan.flat,
    "2d-few-bits": few_bits_plan.sharded,
    "ring-few-bits": few_bits_ring_plan.ring,
    "reduce-scatter": ring.reduce_scatter,
    "allgather": ring.allgather,
    "broadcast": tree.broadcast,
    "alltoall": alltoall.direct,
    "hierarchical-alltoall": alltoall.hierarchical,
}


def plan_names() -> tuple[str, ...]:
    """Give the names that :func:`make_plan` knows."""
    return tuple(_BUILDERS)


def _nearest(word: str, known: tuple[str, ...]) -> str:
    return f"{did_you_mean(word, known, 0.4)} (allowed: {', '.join(known)})"


def make_plan(name: str, **parameters: Any) -> Plan:
    """Build the plan called ``name``.

    A plan ignores the parameters that do not concern it, so that a caller can pass the same ones to
    all.

    Args:
        name: one of :func:`plan_names`.
        **parameters: the fields of :class:`~harp.collectives.request.Request`:

            - ``ranks``: number of ranks (required);
            - ``nbytes``: size in bytes, a multiple of ``unit_bytes`` (required; see ``Plan``);
            - ``unit_bytes``: bytes of an element on the wire, default 4; 2 for fp16;
            - ``group``: ranks of a host, for 2d, 2d-topk, 2d-few-bits and hierarchical-alltoall,
              and for tree where there are several;
            - ``order``: the rank at each position of the pattern (placement), default 0, 1, 2, …;
              the ranks of a host are ``group`` consecutive positions;
            - ``root``: where a broadcast starts, default 0;
            - ``ratio``: share of the elements that top-k sends, default 0.01;
            - ``value_bytes``: bytes of a sparse value on the wire, default ``unit_bytes``;
            - ``chunk_bytes``: largest chunk of the trees, default 512 KiB;
            - ``bits``: of an encoded value, 8 (default), 4 or 2.

    Raises:
        ValueError: an unknown name or parameter, or a value that no plan can have; one sentence.

    """
    if name not in _BUILDERS:
        raise ValueError(f"there is no plan {name!r}{_nearest(name, plan_names())}")
    known = tuple(signature(Request).parameters)
    for parameter in parameters:
        if parameter not in known:
            raise ValueError(f"plans have no parameter {parameter!r}{_nearest(parameter, known)}")
    for required in ("ranks", "nbytes"):
        if required not in parameters:
            raise ValueError(f"plan {name!r} needs {required}")
    return _BUILDERS[name](Request(**parameters))
