"""Transfers and phases: rows that are joined, moved and dropped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harp.collectives.ir import Buffer, Message, Op, Transfers
from harp.collectives.registry import make_plan

RANKS = st.integers(0, 7)
MESSAGES = st.lists(st.builds(
    Message, step=st.integers(0, 9), src=RANKS, dst=RANKS, op=st.sampled_from([Op.COPY, Op.REDUCE]),
    src_buffer=st.sampled_from(Buffer), src_offset=st.integers(0, 1 << 40),
    dst_buffer=st.sampled_from(Buffer), dst_offset=st.integers(0, 1 << 40),
    length=st.integers(0, 1 << 40)), max_size=6)


def rows_of(messages):
    columns = zip(*messages, strict=True) if messages else [[]] * len(Message._fields)
    return Transfers.build(**dict(zip(Message._fields, map(list, columns), strict=True)))


def test_transfers_of_nothing():
    assert len(Transfers.concat([])) == 0
    assert list(Transfers.empty().messages()) == []


@given(MESSAGES, MESSAGES, st.integers(0, 5))
def test_rows_are_lists_of_messages_without_those_of_no_bytes(one, other, steps):
    kept = [message for message in one + other if message.length]
    joined = Transfers.concat([rows_of(one), rows_of(other)])
    assert list(joined.messages()) == kept
    assert list(joined.later(steps).messages()) == [
        message._replace(step=message.step + steps) for message in kept]
    assert list(joined.where(joined.src == 3).messages()) == [m for m in kept if m.src == 3]


def test_columns_are_broadcast_and_a_target_is_its_source_unless_given():
    rows = Transfers.build(step=2, src=[[0], [1]], dst=[2, 3], op=Op.COPY, src_offset=[[8], [0]],
                           length=[4, 0])
    assert list(rows.messages()) == [Message(2, 0, 2, Op.COPY, 0, 8, 0, 8, 4),
                                     Message(2, 1, 2, Op.COPY, 0, 0, 0, 0, 4)]


def test_phases_over_the_same_rings_become_one():
    first, last = (next(make_plan(name, ranks=4, nbytes=400).phases())
                   for name in ("reduce-scatter", "allgather"))
    assert first.continues(last)
    both = first.joined(last)
    assert (both.steps, both.bytes_per_edge.tolist()) == (6, [600] * 4)
    other = next(make_plan("allgather", ranks=4, nbytes=400, order=[0, 2, 1, 3]).phases())
    assert not first.continues(other)
    assert not first.continues(replace(last, feeds=None))
    assert not np.array_equal(first.dst, other.dst)
