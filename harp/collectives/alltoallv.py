"""All-to-alls with counts, and the sums that bring their results back.

`dispatch` sends blocks (`harp.collectives.blocks`), each to some ranks. `combine` takes the way
back: each of these ranks has a block of the same size for the source, which gets the sum. A mixture
of experts does so with its tokens. There are three algorithms:

- ``direct``: a copy to each rank.
- ``hierarchical``: within the host to the rank with the local index of the destination, and from
  there to the destination. The same bytes cross in fewer messages (Hwang et al., "Tutel: adaptive
  mixture-of-experts at scale", MLSys 2023). `combine` has no such plan.
- ``once-per-host``: a block crosses to a host once, to one of the ranks that want it, which passes
  it on to the others there. Back, that rank adds up and sends the sum. It is another rank for each
  source, so that all of a host take part. The ranks of a block must be of one host then.

A message of the second step waits for its own bytes only, so pieces pass on as they come. DATA has
what a rank sends, OUT what comes to it; a `combine` leaves partial sums in DATA.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from harp.collectives.collective_plan import Plan, Stage
from harp.collectives.ir import Buffer, LocalWork, Op, Phase, Transfers
from harp.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harp.collectives.blocks import Blocks
    from harp.collectives.collective_plan import Collective
    from harp.collectives.ir import Bools, Ints

Way = Literal["direct", "hierarchical", "once-per-host"]
WAYS: tuple[Way, ...] = get_args(Way)


@dataclass(frozen=True, eq=False)
class Listed(Stage):
    """Messages that follow no formula, step by step, and the copies before them."""

    pipelined: ClassVar[bool] = True
    tables: tuple[Transfers, ...]
    copies: tuple[LocalWork, ...]

    @property
    def steps(self) -> int:
        """One for each table."""
        return len(self.tables)

    def step(self, index: int) -> Transfers:
        """Each rank starts with its right neighbour."""
        return self.tables[index]

    def sends(self, rank: int) -> Transfers:
        """Its rows of all steps."""
        return self._all(lambda rows: rows.where(rows.src == rank))

    def receives(self, rank: int) -> Transfers:
        """Its rows of all steps."""
        return self._all(lambda rows: rows.where(rows.dst == rank))

    def _all(self, choose: Callable[[Transfers], Transfers]) -> Transfers:
        return Transfers.concat([choose(rows).later(i) for i, rows in enumerate(self.tables)])

    def local_work(self, rank: int) -> Iterator[LocalWork]:
        """Copies of a rank's blocks for itself."""
        return (work for work in self.copies if work.rank == rank)

    def phases(self) -> Iterator[Phase]:
        """One phase a step, of independent edges."""
        for number, rows in enumerate(self.tables):
            ranks = 1 + int(max(rows.src.max(initial=0), rows.dst.max(initial=0)))
            pairs, edge = np.unique(rows.src * np.int64(ranks) + rows.dst, return_inverse=True)
            src, dst = np.divmod(pairs.astype(np.int32), np.int32(ranks))
            yield Phase(f"step {number + 1} of {self.steps}", src, dst,
                        np.bincount(edge, rows.length, len(pairs)).astype(np.int64), 1,
                        np.arange(len(pairs), dtype=np.int32))


class _End(NamedTuple):
    """Places of copies: the rank, the buffer, and the first byte."""

    rank: Ints
    buffer: Buffer
    offset: Ints

    def of(self, copies: Ints) -> _End:
        """Give the same ends of other copies."""
        return _End(self.rank[copies], self.buffer, self.offset[copies])


class _Copies:
    """All copies of all blocks that have bytes, and where both ends have them."""

    def __init__(self, blocks: Blocks, way: Way, hosts: Sequence[int] | None) -> None:
        if way not in WAYS:
            raise ValueError(f"there is no way {way!r}{did_you_mean(way, WAYS, 0.4)} (allowed: "
                             f"{', '.join(WAYS)})")
        self.blocks = blocks
        self.host = np.arange(blocks.ranks) if hosts is None else np.asarray(hosts, np.int64)
        if self.host.shape != (blocks.ranks,):
            raise ValueError(f"hosts has {self.host.size} ranks, and the blocks {blocks.ranks}")
        self.block, self.member = blocks.pairs
        self.src, self.length = blocks.src[self.block], blocks.nbytes[self.block]
        self.at_source = blocks.at_source[self.block]
        self.own = self.src == self.member
        self.away = self.host[self.src] != self.host[self.member]
        if way == "once-per-host":
            self._require_one_host()

    def _require_one_host(self) -> None:
        host = self.host[self.member]
        for i in np.flatnonzero(host[self._first] != host)[:1]:
            raise ValueError(f"block {self.block[i]}, of rank {self.src[i]}, is for ranks of "
                             "several hosts; once-per-host needs a block for each host")

    @cached_property
    def _first(self) -> Ints:
        """The number of the first copy of each copy's block."""
        return np.asarray(np.searchsorted(self.block, self.block))

    @cached_property
    def delegate(self) -> Ints:
        """The copy that stands for all of each copy's block: another one for each source."""
        members = np.bincount(self.block)[self.block] if len(self.block) else self.block
        return self._first + self.src % np.maximum(members, 1)

    def of_block(self, marks: Bools) -> Bools:
        """Of each copy, whether any copy of its block is marked."""
        return np.bincount(self.block, marks, len(self.blocks.src))[self.block] > 0

    def local_equal(self) -> Ints:
        """Of each copy the rank of its source's host that has its member's local index."""
        local, on = np.zeros_like(self.host), dict[int, "Ints"]()
        for host in np.unique(self.host):
            on[int(host)] = np.flatnonzero(self.host == host)
            local[on[int(host)]] = np.arange(len(on[int(host)]))
        ranks = np.arange(len(self.host))
        table = np.array([on[int(self.host[src])][local % len(on[int(self.host[src])])]
                          for src in ranks])
        return np.asarray(table[self.src, self.member])

    def rows(self, some: Bools, src: _End, dst: _End, op: Op = Op.COPY) -> Transfers:
        """Make messages of some copies."""
        return Transfers.build(
            step=0, src=src.rank[some], dst=dst.rank[some], op=op, src_buffer=src.buffer,
            src_offset=src.offset[some], dst_buffer=dst.buffer, dst_offset=dst.offset[some],
            length=self.length[some])

    def plan(self, collective: Collective, way: Way, unit_bytes: int, *steps: list[Transfers],
             stage_bytes: int = 0) -> Plan:
        """Put the steps together, and the copies of what ranks have for themselves."""
        blocks, own = self.blocks, self.own
        ends = (self.at_source, blocks.at_target)
        sizes = (int(blocks.sent_bytes.max()), int(blocks.came_bytes.max()))
        if collective == "combine":
            ends, sizes = ends[::-1], sizes[::-1]
        copies = tuple(
            LocalWork(0, rank, Op.COPY, Buffer.DATA, start, size, Buffer.OUT, end, size, 1)
            for rank, start, end, size in zip(
                *(column[own].tolist() for column in (self.src, *ends, self.length)), strict=True))
        tables = [_in_order(Transfers.concat(parts), blocks.ranks) for parts in steps]
        tables = [rows for rows in tables if len(rows)] or [Transfers.empty()] * bool(copies)
        return Plan(f"{way} {collective}", collective, blocks.ranks, int(blocks.sent_bytes.max()),
                    unit_bytes,
                    (Listed(tuple(tables), copies),), {
                        Buffer.DATA: sizes[0], Buffer.OUT: sizes[1], Buffer.STAGE: stage_bytes},
                    blocks=blocks)


def _in_order(rows: Transfers, ranks: int) -> Transfers:
    """Let each rank begin with its right neighbour, and join what lies side by side."""
    rows = rows.where(np.lexsort((rows.dst_offset, rows.src_offset, rows.src,
                                  (rows.dst - rows.src) % ranks)))
    if not len(rows):
        return rows
    last, this = rows.where(np.arange(len(rows) - 1)), rows.where(np.arange(1, len(rows)))
    joined = ((last.src_offset + last.length == this.src_offset)
              & (last.dst_offset + last.length == this.dst_offset))
    for name in ("src", "dst", "op", "src_buffer", "dst_buffer"):
        joined &= getattr(last, name) == getattr(this, name)
    first = np.flatnonzero(np.append(True, ~joined))
    length = np.add.reduceat(rows.length, first)
    return replace(rows.where(first), length=length)


def dispatch(blocks: Blocks, way: Way = "direct", hosts: Sequence[int] | None = None,
             unit_bytes: int = 1) -> Plan:
    """Send each block to its ranks; ``hosts[rank]`` numbers a rank's host, one each by default.

    Time, all messages in flight: alpha + the bytes of the busiest port over its rate, and the same
    for the second step.

    Raises:
        ValueError: there is no such way, or once per host a block is for several hosts.

    """
    copies = _Copies(blocks, way, hosts)
    source = _End(copies.src, Buffer.DATA, copies.at_source)
    target = _End(copies.member, Buffer.OUT, blocks.at_target)
    others, relay = ~copies.own, copies.src
    if way == "once-per-host":
        passed = copies.away & (copies.delegate != np.arange(len(relay)))
        return copies.plan(
            "alltoallv", way, unit_bytes, [copies.rows(others & ~passed, source, target)],
            [copies.rows(passed, target.of(copies.delegate), target)])
    if way == "hierarchical":
        relay = np.where(copies.away, copies.local_equal(), copies.src)
    passed = relay != copies.src
    place, stage_bytes = _places(copies, relay, passed)
    stage = _End(relay, Buffer.STAGE, place)
    late = copies.away & ~passed if passed.any() else np.zeros_like(passed)
    return copies.plan(
        "alltoallv", way, unit_bytes,
        [copies.rows(others & ~passed & ~late, source, target), copies.rows(passed, source, stage)],
        [copies.rows(passed, stage, target), copies.rows(late, source, target)],
        stage_bytes=stage_bytes)


def _places(copies: _Copies, relay: Ints, passed: Bools) -> tuple[Ints, int]:
    """Give passed copies places at their relays, sorted by destination, and the largest room."""
    order = np.lexsort((copies.block, copies.member, relay, ~passed))
    size = np.where(passed, copies.length, 0)[order]
    ends, at = np.cumsum(size), relay[order]
    start = ends - size
    first = np.r_[True, at[1:] != at[:-1]] if len(at) else np.zeros(0, bool)
    base = np.maximum.accumulate(np.where(first, start, 0))
    place = np.empty_like(ends)
    place[order] = start - base
    room = int((place + copies.length)[passed].max(initial=0))
    return place, room


def combine(blocks: Blocks, way: Way = "direct", hosts: Sequence[int] | None = None,
            unit_bytes: int = 4) -> Plan:
    """Add up at the source of each block what its ranks have for it.

    Raises:
        ValueError: there is no such way, or once per host a block is for several hosts.

    """
    copies = _Copies(blocks, way, hosts)
    if way == "hierarchical":
        raise ValueError("sums have no hierarchical way (allowed: direct, once-per-host)")
    source = _End(copies.member, Buffer.DATA, blocks.at_target)
    target = _End(copies.src, Buffer.OUT, copies.at_source)
    begun = copies.of_block(copies.own)  # its source has a block of its own to add to
    added = begun & ~copies.own
    stands = ~begun & (copies.delegate == np.arange(len(begun)))
    rest = ~begun & ~stands
    alone = stands & ~copies.of_block(rest)
    first = [copies.rows(added, source, target, Op.REDUCE)]
    if way == "direct":
        return copies.plan("combine", way, unit_bytes,
                           [*first, copies.rows(stands, source, target)],
                           [copies.rows(rest, source, target, Op.REDUCE)])
    return copies.plan(
        "combine", way, unit_bytes,
        [*first, copies.rows(alone, source, target),
         copies.rows(rest, source, source.of(copies.delegate), Op.REDUCE)],
        [copies.rows(stands & ~alone, source, target)])
