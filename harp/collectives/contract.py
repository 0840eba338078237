"""The contract of each collective, independent of any algorithm: data before and after.

A plan of one rank has no steps, and its result is its input (an all-to-all then leaves OUT alone).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.ir import Buffer
from harp.collectives.layout import Shards

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from harp.collectives.blocks import Blocks
    from harp.collectives.collective_plan import Plan
    from harp.collectives.ir import Bools, Ints

EVERY = -1
"""As a contributor: one contribution of each rank, added up."""


@dataclass(frozen=True, eq=False)
class Claims:
    """Rows "``rank`` has in ``buffer`` at ``offset`` the bytes that were at ``origin``".

    ``origin`` is an offset in DATA, or behind its end in OUT, and counts from the memory of rank
    ``home`` where ranks have the same bytes at places of their own. ``contributor`` is the rank
    that contributed them, or EVERY; where there are ``sums``, each row's ranks are added up.
    """

    rank: Ints
    buffer: Ints
    offset: Ints
    length: Ints
    origin: Ints
    contributor: Ints
    home: Ints
    sums: Bools | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, rank: ArrayLike, offset: ArrayLike, length: ArrayLike, contributor: ArrayLike, *,
           buffer: Buffer = Buffer.DATA, origin: ArrayLike | None = None,
           home: ArrayLike = 0, sums: Bools | None = None) -> Claims:
        """Broadcast, flatten, and drop the rows of no bytes; ``origin`` defaults to ``offset``."""
        columns = np.broadcast_arrays(rank, buffer, offset, length,
                                      offset if origin is None else origin, contributor, home)
        keep = columns[3].ravel() > 0
        return cls(*(column.ravel()[keep].astype(np.int64) for column in columns),
                   sums=None if sums is None else sums[keep])


@dataclass(frozen=True, eq=False)
class Contract:
    """The data of the ranks before and after."""

    before: Claims
    after: Claims


def contract(plan: Plan) -> Contract:
    """Give the contract of ``plan``'s collective for its ranks, size and root."""
    if plan.ranks == 1 and plan.blocks is None:
        whole = Claims.of(0, 0, plan.nbytes, 0)
        return Contract(whole, whole)
    return _CONTRACTS[plan.collective](plan, np.arange(plan.ranks))


def _shards(plan: Plan) -> tuple[Ints, Ints]:
    shards, ranks = Shards.of(plan.nbytes, plan.unit_bytes, plan.ranks), np.arange(plan.ranks)
    return shards.start(0, ranks), shards.length(0, ranks)


def _allreduce(plan: Plan, ranks: Ints) -> Contract:
    return Contract(Claims.of(ranks, 0, plan.nbytes, ranks),
                    Claims.of(ranks, 0, plan.nbytes, EVERY))


def _reduce_scatter(plan: Plan, ranks: Ints) -> Contract:
    start, length = _shards(plan)
    return Contract(Claims.of(ranks, 0, plan.nbytes, ranks),
                    Claims.of(ranks, start, length, EVERY))


def _allgather(plan: Plan, ranks: Ints) -> Contract:
    start, length = _shards(plan)
    return Contract(Claims.of(ranks, start, length, ranks),
                    Claims.of(ranks[:, None], start, length, ranks))


def _broadcast(plan: Plan, ranks: Ints) -> Contract:
    return Contract(Claims.of(plan.root, 0, plan.nbytes, plan.root),
                    Claims.of(ranks, 0, plan.nbytes, plan.root))


def _alltoall(plan: Plan, ranks: Ints) -> Contract:
    start, length = (column[:, None] for column in _shards(plan))
    return Contract(Claims.of(ranks, 0, plan.nbytes, ranks),
                    Claims.of(ranks[:, None], ranks * length, length, ranks, buffer=Buffer.OUT,
                              origin=start))


def _alltoallv(plan: Plan, ranks: Ints) -> Contract:  # noqa: ARG001  (blocks name them)
    blocks = _blocks(plan)
    block, member = blocks.pairs
    src, start, length = blocks.src[block], blocks.at_source[block], blocks.nbytes[block]
    return Contract(Claims.of(blocks.src, blocks.at_source, blocks.nbytes, blocks.src),
                    Claims.of(member, blocks.at_target, length, src,
                              buffer=Buffer.OUT, origin=start))


def _combine(plan: Plan, ranks: Ints) -> Contract:  # noqa: ARG001  (blocks name them)
    blocks = _blocks(plan)
    block, member = blocks.pairs
    goal = plan.buffers[Buffer.DATA] + blocks.at_source
    wanted = blocks.to.any(axis=1)
    return Contract(
        Claims.of(member, blocks.at_target, blocks.nbytes[block], member,
                  origin=goal[block], home=blocks.src[block]),
        Claims.of(blocks.src, blocks.at_source, blocks.nbytes * wanted, 0, buffer=Buffer.OUT,
                  origin=goal, home=blocks.src, sums=blocks.to))


def _blocks(plan: Plan) -> Blocks:
    assert plan.blocks is not None
    return plan.blocks


_CONTRACTS: dict[str, Callable[[Plan, Ints], Contract]] = {
    "allreduce": _allreduce, "reduce_scatter": _reduce_scatter, "allgather": _allgather,
    "broadcast": _broadcast, "alltoall": _alltoall, "alltoallv": _alltoallv, "combine": _combine,
}
