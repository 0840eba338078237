"""Channels in memory: the order of pieces, slots, and what is sent."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harp.collectives.channels import memory_channels
from harp.collectives.window import Window


@given(st.lists(st.binary(max_size=9), max_size=20), st.integers(1, 8))
def test_pieces_come_whole_in_the_order_in_which_they_were_sent(pieces, slots):
    async def go() -> list[bytes]:
        ends = memory_channels(3, Window(slots))

        async def send() -> None:
            for piece in pieces:
                await ends[2][0].send(np.frombuffer(piece, np.uint8))

        sent = asyncio.create_task(send())
        came = [(await ends[0][2].receive(len(piece))).tobytes() for piece in pieces]
        await sent
        assert ends[0][1].waiting == ends[1][0].waiting == ends[2][0].waiting == 0
        return came

    assert asyncio.run(go()) == pieces


def test_a_piece_is_what_it_was_when_it_was_sent():
    async def go() -> None:
        ends = memory_channels(2)
        piece = np.arange(4, dtype=np.uint8)
        await ends[0][1].send(piece)
        piece[:] = 0
        assert (await ends[1][0].receive(4)).tolist() == [0, 1, 2, 3]

    asyncio.run(go())


def test_a_sender_waits_for_a_free_slot():
    async def go() -> None:
        near, far = memory_channels(2, Window(2))
        sends = [asyncio.create_task(near[1].send(np.zeros(1, np.uint8))) for _ in range(3)]
        await asyncio.wait(sends[:2])
        assert (far[0].waiting, [send.done() for send in sends]) == (2, [True, True, False])
        await far[0].receive(1)
        await sends[2]
        assert far[0].waiting == 2

    asyncio.run(go())


def test_a_piece_of_another_size_is_refused():
    async def go() -> None:
        near, far = memory_channels(2)
        await near[1].send(np.zeros(3, np.uint8))
        await far[0].receive(4)

    with pytest.raises(ValueError, match="a piece of 3 B came where 4 B were to come: the ranks do "
                                         "not run the same plan"):
        asyncio.run(go())
