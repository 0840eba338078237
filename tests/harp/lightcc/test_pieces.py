"""The lab's executor and the collectives on host memory do the same with every plan."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import assume, given, settings

from harp._cnet import ffi
from harp.collectives.channels import memory_channels
from harp.collectives.execute import Execution
from harp.collectives.ir import Buffer
from harp.lightcc.elements import combination
from harp.lightcc.mover import SLOTS
from harp.lightcc.pieces import PIECE_BYTES, PLACE, REDUCE, SEND, address, pieces_of, table
from harp.lightcc.program import Program
from tests.harp.lightcc.test_group import group_of, of_all
from tests.support.collectives_cases import plans
from tests.support.levels import draws

if TYPE_CHECKING:
    from harp.collectives.collective_plan import Plan

DTYPES = {2: "<i2", 4: "<i4", 8: "<i8"}
TRANSFERS = range(REDUCE + 1)
"""Kinds of pieces that go to or come from a peer: SEND, PLACE, REDUCE."""


class RecordingChannel:
    """A channel that notes what passes: to a peer the place and the size, from a peer the size."""

    def __init__(self, channel, sent, received, place_of) -> None:
        self.channel, self.sent, self.received, self.place_of = channel, sent, received, place_of

    async def send(self, piece: np.ndarray) -> None:
        self.sent.append((self.place_of(piece), len(piece)))
        await self.channel.send(piece)

    async def receive(self, nbytes: int) -> np.ndarray:
        self.received.append(nbytes)
        return await self.channel.receive(nbytes)


def moved_by_the_lab(plan: Plan) -> list[tuple[dict, dict]]:
    """By rank and peer: what is sent from where, and sizes of what comes, in order."""
    moved = [(defaultdict(list), defaultdict(list)) for _ in range(plan.ranks)]

    async def go() -> None:
        channels = memory_channels(plan.ranks)
        ranks = [Execution(plan, rank, DTYPES[plan.unit_bytes], recording.__getitem__)
                 for rank, recording in enumerate(recordings)]
        for rank, execution in enumerate(ranks):
            def place_of(piece, buffers=execution.buffers):
                inside = {buffer: address(piece) - address(whole)
                          for buffer, whole in buffers.items()}
                buffer, offset = next((buffer, offset) for buffer, offset in inside.items()
                                      if 0 <= offset < len(buffers[buffer]))
                return offset + (plan.buffers[Buffer.DATA] if buffer == Buffer.PAIRS else 0)
            for peer, channel in channels[rank].items():
                sent, received = moved[rank]
                recordings[rank][peer] = RecordingChannel(channel, sent[peer], received[peer],
                                                          place_of)
        await asyncio.gather(*(execution.run() for execution in ranks))

    recordings = [{} for _ in range(plan.ranks)]
    asyncio.run(go())
    return moved


def moved_by_pieces(plan: Plan, rank: int) -> tuple[dict, dict]:
    sent, received = defaultdict(list), defaultdict(list)
    for row in pieces_of(plan, rank).rows:
        if row["kind"] == SEND:
            sent[int(row["peer"])].append((int(row["at"]), int(row["bytes"])))
        elif row["kind"] in TRANSFERS:
            received[int(row["peer"])].append(int(row["bytes"]))
    return sent, received


@settings(deadline=None, max_examples=draws(50))
@given(plans(max_ranks=12))
def test_both_executors_send_the_same_bytes_of_the_same_places_in_the_same_order(plan):
    assume(set(plan.buffers) <= {Buffer.DATA, Buffer.PAIRS})
    assert max(plan.buffers.values()) <= PIECE_BYTES  # no message is cut, at either
    for rank, (sent, received) in enumerate(moved_by_the_lab(plan)):
        own_sent, own_received = moved_by_pieces(plan, rank)
        for peer in range(plan.ranks):
            assert own_sent[peer] == sent[peer]
            assert own_received[peer] == received[peer]


def run_pieces(group, lists):
    """Let each rank move pieces: rows of kind, peer and float32 memory."""
    programs = [Program(
        "a test's pieces", table([(address(memory), 0, memory.nbytes, 0, kind, peer, 0)
                                  for kind, peer, memory in pieces]), rank, len(group),
        ffi.new("struct harp_piece_work *", {"reduce": combination("float32", "sum")}))
        for rank, pieces in enumerate(lists)]
    of_all(rank._queue.begin(program, lists) for rank, program in zip(group, programs, strict=True))


def test_pieces_that_overtake_leave_a_slot_for_the_piece_that_they_wait_for():
    """Rank 2 sends the sum `y` back as often as there are slots; rank 1's part stands behind `x`.

    When rank 0 begins it could post for all that rank 2 sends back, but not yet for `x`, whose
    memory rank 2 is to fill first.
    """
    x, y, first_x, last_x, to_y, got_y, *sums = (
        np.full(1, value, np.float32) for value in [0, 2, 1, 3, 4, 0, *[5] * SLOTS])
    with group_of(3, timeout_s=20) as group:
        run_pieces(group, [
            [(PLACE, 2, x), (PLACE, 1, x), (REDUCE, 1, y), (SEND, 2, y),
             *((REDUCE, 2, one) for one in sums)],
            [(SEND, 0, last_x), (SEND, 0, to_y)],
            [(SEND, 0, first_x), (PLACE, 0, got_y), *[(SEND, 0, got_y)] * SLOTS]])
    assert [float(one[0]) for one in (x, y, got_y, *sums)] == [3, 6, 6] + [11] * SLOTS
