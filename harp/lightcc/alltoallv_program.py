"""All-to-alls with counts on real memory: programs of the plans of `harp.collectives.alltoallv`.

Where all ranks know all counts, as a layer of experts does, `Group.run_blocks` runs a plan of them.
Otherwise, as for torch's ``all_to_all_single``, `Counts` exchanges them first; its program is made
when the call begins and they are there.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from harp._cnet import ffi
from harp.collectives.alltoallv import dispatch
from harp.collectives.blocks import Blocks
from harp.collectives.choice import choose
from harp.collectives.ir import Buffer, Op
from harp.lightcc.elements import combination, element_type, move
from harp.lightcc.failure import GroupError
from harp.lightcc.pieces import address, rows_on, table
from harp.lightcc.program import Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harp.collectives.collective_plan import Plan

    Bytes = NDArray[np.uint8]


CHOSEN_RANKS = 32
"""More ranks send directly: to compare plans of all their counts takes longer than it saves."""


class Call:
    """A rank's part of a plan of blocks: its pieces, and the copies of what it has for itself."""

    def __init__(self, plan: Plan, rank: int, data: Bytes, out: Bytes) -> None:
        self.stage = np.empty(plan.buffers.get(Buffer.STAGE, 0), np.uint8)
        at = {Buffer.DATA: address(data), Buffer.OUT: address(out),
              Buffer.STAGE: address(self.stage)}
        self.pieces = rows_on(plan, rank, at)
        self._copies = [(at[Buffer(work.dst_buffer)] + work.dst_offset,
                         at[Buffer(work.src_buffer)] + work.src_offset, work.src_length)
                        for work in plan.local_work(rank) if work.op == Op.COPY]

    def copy_own(self) -> None:
        """Copy a rank's blocks for itself."""
        for copy in self._copies:
            move(*copy)


def program_of(plan: Plan, rank: int, data: Bytes, out: Bytes, dtype: str) -> Program:
    """Make a program of a plan that all ranks know.

    Raises:
        ValueError: the memory is not that of the rank's blocks.

    """
    blocks, is_sum = plan.blocks, plan.collective == "combine"
    assert blocks is not None
    due = [int(blocks.sent_bytes[rank]), int(blocks.came_bytes[rank])][::-1 if is_sum else 1]
    for what, memory, nbytes in zip(("to send", "for what comes"), (data, out), due, strict=True):
        if len(memory) != nbytes:
            raise ValueError(f"{plan.name}: {len(memory)} B {what}, but rank {rank}'s blocks have "
                             f"{nbytes} B")
    call = Call(plan, rank, data, out)
    work = ffi.new("struct harp_piece_work *",
                   {"reduce": combination(dtype, "sum")} if is_sum else {})
    words = (f"{plan.name} of {int(blocks.nbytes.sum()) // element_type(dtype).itemsize} {dtype} "
             f"in {len(blocks.src)} blocks, {_digest(blocks):08x}")
    return Program(words, call.pieces, rank, blocks.ranks, work, own=call.stage,
                   data=(data, out), prepare=call.copy_own)


def _digest(blocks: Blocks) -> int:
    """Number the counts, so that ranks with other ones do not agree."""
    found = 0
    for column in (blocks.src, blocks.to, blocks.nbytes):
        found = zlib.crc32(column.tobytes(), found)
    return found


class Counts:
    """Bytes that each rank sends to each rank and expects of it, by its own word."""

    def __init__(self, rank: int, sends: Sequence[int], expects: Sequence[int]) -> None:
        ranks = len(sends)
        self._rank = rank
        self._said = np.zeros((ranks, 2, ranks), np.int64)
        self._said[rank] = sends, expects

    @property
    def rows(self) -> list[Bytes]:
        """The memory of each rank's."""
        return [row.reshape(-1).view(np.uint8) for row in self._said]

    def agreed(self) -> NDArray[np.int64]:
        """Return what goes from i to j. Raises GroupError, at all ranks the same, if not agreed."""
        sends, expects = self._said[:, 0], self._said[:, 1].T
        for src, dst in np.argwhere(sends != expects)[:1]:
            raise GroupError(f"ranks do not agree: rank {src} sends {sends[src, dst]} B to rank "
                             f"{dst}, which expects {expects[src, dst]} B")
        return sends


def _plan_of(counts: NDArray[np.int64], rank: int, hosts: Sequence[int]) -> Plan:
    """Give the plan that is chosen, or of many ranks a rank's own part of the direct one."""
    ranks = np.arange(len(hosts))
    if len(hosts) > CHOSEN_RANKS:
        own = (ranks == rank) | (ranks == rank)[:, None]
        return dispatch(Blocks.of_counts(counts * own))
    blocks = Blocks.of_counts(counts)
    return dispatch(blocks, choose(dispatch, blocks, hosts), hosts)


def program_of_counts(what: str, counts: Counts, rank: int, hosts: Sequence[int], data: Bytes,
                      out: Bytes) -> Program:
    """Make a program that takes its pieces from counts that are there when it begins."""
    ranks = len(hosts)
    program: Program

    def prepare() -> NDArray[np.void]:
        plan = _plan_of(counts.agreed(), rank, hosts)
        call = Call(plan, rank, data, out)
        program.keep(call.stage)
        call.copy_own()
        return call.pieces

    program = Program(what, table([]), rank, ranks, prepare=prepare, same_sizes=False)
    return program
