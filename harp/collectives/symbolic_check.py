"""Proof by symbolic execution that a plan does what its collective demands.

The bytes of all buffers are cut into *segments* at every boundary that any message has, so that the
bytes of a segment share one fate. For each rank and segment the checker knows which byte of DATA
stands there (its origin), and how many contributions of each rank it contains. Only bytes of one
origin may be added up. Where a sum is of bytes that ranks have at different places, the contract
gives them one origin: the place of the sum, and its rank. The checker executes the plan on that
knowledge, step by step, and compares the end with the collective's contract.

It takes memory in ranks² x segments, which is meant for up to a few hundred ranks; the patterns are
the same for any number.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.contract import EVERY, contract
from harp.collectives.ir import Buffer, LocalWork, Op, Transfers

if TYPE_CHECKING:
    from harp.collectives.collective_plan import Plan
    from harp.collectives.contract import Claims
    from harp.collectives.ir import Bools, Ints

NOTHING = -1
"""The origin of bytes that are not written yet."""
DENSE = -1
"""The selection that bytes of DATA belong to: none."""
MAX_ROUNDS = 64
"""Cuts of a plan that moves whole blocks settle in two or three rounds."""
MAX_SLIDING = 1 << 14
"""Segments up to which ranges that slide against one another are still followed."""


class PlanError(ValueError):
    """A plan is wrong; the message names step, rank and byte range, and what is wrong with them."""


def check(plan: Plan) -> None:
    """Prove that every rank ends with every contribution exactly once, or what else is demanded.

    Also that no message leaves its buffers, that no rank sends to itself or sends what it does not
    hold, and that in no step a byte is replaced twice, or while it is being sent. (Messages may be
    added to a byte that is sent to the rank that they come from, and several at once.)

    Raises:
        PlanError: the first thing that is wrong.

    """
    steps = [plan.step(step) for step in range(plan.steps)]
    local: dict[int, list[LocalWork]] = defaultdict(list)
    for rank in range(plan.ranks):
        for work in plan.local_work(rank):
            local[work.step].append(work)
    space = _Space(plan)
    for rows in steps:
        space.require_inside(rows)
    demand = contract(plan)
    space.cut(steps, [work for works in local.values() for work in works],
              [demand.before, demand.after])
    state = _State(plan, space, demand.before)
    for step, rows in enumerate(steps):
        state.work(local[step])
        state.exchange(step, rows)
    state.require(demand.after)


class _Space:
    """All buffers of a rank, laid end to end as one range of addresses, and its segments."""

    def __init__(self, plan: Plan) -> None:
        self.ranks = plan.ranks
        self.sizes = np.array([plan.buffers.get(buffer, 0) for buffer in Buffer], np.int64)
        self.base = np.concatenate([[0], np.cumsum(self.sizes)])
        self.cuts: Ints = np.unique(self.base)

    def require_inside(self, rows: Transfers) -> None:
        """Refuse messages that leave their buffers, or that go nowhere."""
        for end, buffer, offset in ((rows.src, rows.src_buffer, rows.src_offset),
                                    (rows.dst, rows.dst_buffer, rows.dst_offset)):
            size = self.sizes[buffer]
            wrong = (offset < 0) | (offset + rows.length > size) | (end < 0) | (end >= self.ranks)
            for i in np.flatnonzero(wrong | (rows.src == rows.dst) | (rows.length < 1))[:1]:
                raise PlanError(
                    f"step {rows.step[i]}: the message from rank {rows.src[i]} to rank "
                    f"{rows.dst[i]} covers bytes {offset[i]} to {offset[i] + rows.length[i]} of "
                    f"{Buffer(int(buffer[i])).name}, which has {size[i]} in {self.ranks} ranks")

    def cut(self, steps: list[Transfers], works: list[LocalWork], claims: list[Claims]) -> None:
        """Find all segments, such that both sides of every copy fall into the same ones."""
        rows = Transfers.concat(steps)
        moves = [(self.base[rows.src_buffer] + rows.src_offset,
                  self.base[rows.dst_buffer] + rows.dst_offset, rows.length)]
        moves += [(self.base[claim.buffer] + claim.offset, claim.origin, claim.length)
                  for claim in claims]
        own = np.array(works, np.int64).reshape(len(works), len(LocalWork._fields)).T
        for buffer, offset, length in (own[3:6], own[6:9]):
            start = self.base[buffer] + offset
            moves.append((start, start, length))
        table = np.unique(np.concatenate([np.stack(move, axis=1) for move in moves]), axis=0)
        one, other, length = table.T
        self._add(one, one + length, other, other + length)
        apart = one != other
        self._settle(one[apart], other[apart], length[apart])

    def _add(self, *more: Ints) -> None:
        self.cuts = np.unique(np.concatenate([self.cuts, *more]))

    def _settle(self, one: Ints, other: Ints, length: Ints) -> None:
        for _ in range(MAX_ROUNDS):
            before = len(self.cuts)
            for a, b in ((one, other), (other, one)):
                row, segment = self.segments(a, length)
                self._add(self.cuts[segment] - a[row] + b[row])
            if len(self.cuts) == before:
                return
        # Ranges that slide against one another settle one element a round. The multiples of the
        # common divisor of all boundaries are cuts that no copy can leave.
        divisor = np.gcd.reduce(np.concatenate([self.base, one, other, length]))
        if self.base[-1] > divisor * MAX_SLIDING:
            raise PlanError("the byte ranges of the messages do not line up with one another")
        self.cuts = np.arange(0, self.base[-1] + 1, divisor)

    def segments(self, start: Ints, length: Ints) -> tuple[Ints, Ints]:
        """Expand address ranges: the row and the segment of each piece."""
        first = np.searchsorted(self.cuts, start, "right") - 1
        count = np.searchsorted(self.cuts, start + length) - first
        row = np.repeat(np.arange(len(start)), count)
        within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        return row, first[row] + within

    def origin(self, claims: Claims, row: Ints, segment: Ints) -> Ints:
        """Number the place where a segment of a claim belongs, another one for each home."""
        within = self.cuts[segment] - (self.base[claims.buffer] + claims.offset)[row]
        return np.asarray(claims.home[row] * self.base[-1] + claims.origin[row] + within)

    def name(self, segment: int) -> str:
        """Name a segment for a message."""
        start, end = self.cuts[segment], self.cuts[segment + 1]
        buffer = int(np.searchsorted(self.base, start, "right")) - 1
        return f"bytes {start - self.base[buffer]} to {end - self.base[buffer]} of " \
               f"{Buffer(buffer).name}"


class _State:
    """The known content of every segment of every rank, and the effect of a step on it."""

    def __init__(self, plan: Plan, space: _Space, before: Claims) -> None:
        shape = plan.ranks, max(len(space.cuts) - 1, 0)
        self.space, self.ranks = space, plan.ranks
        self.origin = np.full(shape, NOTHING, np.int64)
        self.selection = np.full(shape, DENSE, np.int64)
        """Start of the range of DATA that a pair or code is made of; origins count from there."""
        self.count = np.zeros((*shape, plan.ranks), np.int8)
        row, segment = space.segments(space.base[before.buffer] + before.offset, before.length)
        rank = before.rank[row]
        self.origin[rank, segment] = space.origin(before, row, segment)
        self.count[rank, segment, before.contributor[row]] = 1

    def exchange(self, step: int, rows: Transfers) -> None:
        """All messages of a step at once: read everything, then write everything."""
        base = self.space.base
        row, source = self.space.segments(base[rows.src_buffer] + rows.src_offset, rows.length)
        _, target = self.space.segments(base[rows.dst_buffer] + rows.dst_offset, rows.length)
        src, dst = rows.src[row].astype(np.int64), rows.dst[row].astype(np.int64)
        self._refuse(self.origin[src, source] == NOTHING, step, src, source,
                     "sends what it does not hold")
        copies = rows.op[row] != Op.REDUCE
        width = len(self.space.cuts)
        written = dst * width + target
        _, place, writers = np.unique(written, return_inverse=True, return_counts=True)
        clash = (writers > 1) & (np.bincount(place, copies) > 0)
        self._refuse(clash[place], step, dst, target, "is sent the same bytes twice at once")
        sent = src * width + source
        exchanged = ~copies & np.isin(written * self.ranks + src, sent * self.ranks + dst)
        self._refuse(np.isin(written, sent) & ~exchanged, step, dst, target,
                     "sends bytes while they are written")
        origin, selection = self.origin[src, source], self.selection[src, source]
        strange = (self.origin[dst, target] != origin) | (self.selection[dst, target] != selection)
        self._refuse(strange & ~copies, step, dst, target, "adds bytes that belong elsewhere")
        count = self.count[src, source]
        self.origin[dst, target], self.selection[dst, target] = origin, selection
        self.count[dst[copies], target[copies]] = count[copies]
        np.add.at(self.count, (dst[~copies], target[~copies]), count[~copies])
        self._refuse_doubles(self.count[dst, target], f"step {step}: ", dst, target)

    def work(self, works: list[LocalWork]) -> None:
        """Do the local work of a step."""
        for work in works:
            source = self._range(work.src_buffer, work.src_offset, work.src_length)
            target = self._range(work.dst_buffer, work.dst_offset, work.dst_length)
            if work.op in (Op.SELECT, Op.ENCODE):
                self._select(work, source, target)
            elif work.op in (Op.SCATTER_ADD, Op.DECODE):
                self._scatter_add(work, target)
            else:
                self.origin[work.rank, target] = self.origin[work.rank, source]
                self.count[work.rank, target] = self.count[work.rank, source]

    def _range(self, buffer: int, offset: int, length: int) -> Ints:
        start = np.array([self.space.base[buffer] + offset])
        return self.space.segments(start, np.array([length]))[1]

    def _select(self, work: LocalWork, source: Ints, target: Ints) -> None:
        self._require_whole(work, source, source[:1], self.space.cuts[source], DENSE)
        start = self.space.cuts[target]
        self.origin[work.rank, target] = start - start[:1]
        self.selection[work.rank, target] = work.src_offset
        self.count[work.rank, target] = self.count[work.rank, source[0]]

    def _scatter_add(self, work: LocalWork, target: Ints) -> None:
        size = work.src_length // work.slots
        start = self.space.base[work.src_buffer] + work.src_offset + size * np.arange(work.slots)
        slot, source = self.space.segments(start, np.full(work.slots, size))
        first = np.searchsorted(self.space.cuts, start)
        self._require_whole(work, source, first[slot], self.space.cuts[source] - start[slot],
                            work.dst_offset)
        total = self.count[work.rank, first].sum(axis=0, dtype=np.int8)
        self._refuse_doubles(total[None, :], f"step {work.step}: ", np.array([work.rank]), target)
        self.origin[work.rank, target] = self.space.cuts[target]
        self.count[work.rank, target] = total

    def _require_whole(self, work: LocalWork, source: Ints, first: Ints, origin: Ints,
                       selection: int) -> None:
        # Each range (it begins with ``first``) is of the same ranks throughout, and in its place.
        rank = np.full(len(source), work.rank)
        wrong = ((self.origin[rank, source] != origin)
                 | (self.selection[rank, source] != selection)
                 | (self.count[rank, source] != self.count[rank, first]).any(axis=1))
        self._refuse(wrong, work.step, rank, source, "selects or adds up a range that is not whole")

    def require(self, after: Claims) -> None:
        """Compare with what the collective demands."""
        space = self.space
        start = space.base[after.buffer] + after.offset
        row, segment = space.segments(start, after.length)
        rank = after.rank[row]
        origin = space.origin(after, row, segment)
        count = self.count[rank, segment]
        self._refuse_doubles(count, "at the end ", rank, segment)
        contributor = after.contributor[row][:, None]
        wanted = (after.sums[row] if after.sums is not None else
                  (contributor == EVERY) | (contributor == np.arange(self.ranks)))
        for i, who in np.argwhere((count == 0) & wanted)[:1]:
            raise PlanError(f"at the end rank {rank[i]} lacks the contribution of rank {who} in "
                            f"{space.name(segment[i])}")
        for i, who in np.argwhere((count != 0) & ~wanted)[:1]:
            raise PlanError(f"at the end rank {rank[i]} has a contribution of rank {who}, which "
                            f"does not belong in {space.name(segment[i])}")
        for i in np.flatnonzero(self.origin[rank, segment] != origin)[:1]:
            raise PlanError(f"at the end rank {rank[i]} has bytes of another place in "
                            f"{space.name(segment[i])}")

    def _refuse_doubles(self, count: np.ndarray[tuple[int, ...], np.dtype[np.int8]], when: str,
                        rank: Ints, segment: Ints) -> None:
        for i, who in np.argwhere(count > 1)[:1]:
            raise PlanError(f"{when}rank {rank[i]} has the contribution of rank {who} more than "
                            f"once in {self.space.name(segment[i])}")

    def _refuse(self, wrong: Bools, step: int, rank: Ints, segment: Ints, what: str) -> None:
        for i in np.flatnonzero(wrong)[:1]:
            raise PlanError(f"step {step}: rank {rank[i]} {what}: {self.space.name(segment[i])}")
