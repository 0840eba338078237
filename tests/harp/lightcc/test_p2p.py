"""Messages between ranks: each finds its receive, by rank and tag."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from harp.lightcc.group import GroupError
from tests.harp.lightcc.test_group import PATIENCE_S, group_of, of_all, raw


def test_messages_find_their_receive_by_rank_and_tag():
    with group_of(3) as group:
        sent = [group[0].send(raw(np.full(5, 1.0)), 2, tag=7),
                group[1].send(raw(np.full(5, 2.0)), 2, tag=7),
                group[0].send(raw(np.full(300_000, 3.0)), 2, tag=9)]
        large, one, any_other = np.zeros(300_000), np.zeros(5), np.zeros(5)
        assert group[2].receive(raw(large), 0, tag=9).result(PATIENCE_S) == 0
        assert group[2].receive(raw(one), 1, tag=7).result(PATIENCE_S) == 1
        assert group[2].receive(raw(any_other), None, tag=7).result(PATIENCE_S) == 0
        of_all(sent)
        assert (large == 3).all()
        assert (one == 2).all()
        assert (any_other == 1).all()


def test_a_message_of_another_size_is_reported():
    with group_of(2) as group:
        group[0].send(raw(np.zeros(4)), 1)
        with pytest.raises(GroupError, match=r"rank 0 sent 32 B with tag 0, and rank 1 receives "
                                             r"8 B"):
            group[1].receive(raw(np.zeros(1)), 0).result(PATIENCE_S)


def test_a_receive_that_begins_as_the_group_ends_waits_for_nothing():
    """It was called before the end, and has its first turn in the loop after it."""
    with group_of(2) as group:
        async def end_between():
            receive = asyncio.ensure_future(group[0]._p2p.receive(1, 0))
            group[0]._failure.settle("the end")
            return await asyncio.wait_for(receive, PATIENCE_S)

        with pytest.raises(GroupError, match="the end"):
            group[0]._on_loop(end_between()).result(PATIENCE_S)
