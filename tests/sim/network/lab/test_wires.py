"""Wires of kernel TCP between hosts of the laboratory, over sockets of this process."""

from __future__ import annotations

import asyncio
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.network.lab.messages import EdgeFlows, EdgeKey, Setup
from sim.network.lab.wires import TcpWire, TcpWires


def wired(count: int) -> tuple[list[socket.socket], list[socket.socket]]:
    pairs = [socket.socketpair() for _ in range(count)]
    for sock in (sock for pair in pairs for sock in pair):
        sock.setblocking(False)
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def close(sockets) -> None:
    for sock in sockets:
        sock.close()


@given(st.integers(1, 5), st.lists(st.binary(max_size=200), max_size=5))
def test_pieces_come_whole_and_in_order_over_any_number_of_sockets(count, pieces):
    async def carry() -> list[bytes]:
        near, far = wired(count)
        sender, receiver = TcpWire(near), TcpWire(far)
        got = []
        for piece in pieces:
            await sender.send(np.frombuffer(piece, np.uint8))
            got.append((await receiver.take()).tobytes())
        close([*near, *far])
        return got

    assert asyncio.run(carry()) == pieces


def test_a_piece_is_cut_evenly_over_the_sockets():
    async def cut() -> list[bytes]:
        near, far = wired(4)
        await TcpWire(near).send(np.arange(42, dtype=np.uint8))
        got = [sock.recv(100) for sock in far]
        close([*near, *far])
        return got

    parts = asyncio.run(cut())
    assert [int.from_bytes(part[:4], "big") for part in parts] == [10, 11, 10, 11]
    assert b"".join(part[4:] for part in parts) == bytes(range(42))


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\0\0\0\5abc"])
def test_a_peer_that_goes_within_a_piece_is_named(sent):
    async def end() -> None:
        (near,), (far,) = wired(1)
        near.sendall(sent)
        near.close()
        try:
            await TcpWire([far]).take()
        finally:
            far.close()

    with pytest.raises(EOFError, match="a peer closed its connection"):
        asyncio.run(end())


def test_a_wire_is_given_when_all_of_its_sockets_have_come():
    """Two wires of one edge, by the same source ports: the second one takes any."""
    def address(host: int) -> str:
        return f"127.{host}.92.71"

    async def connect() -> tuple[list[bytes], list[tuple[str, int]]]:
        wires = [TcpWires(Setup("tcp", 2, None, 1, None, (address(host),), ()))
                 for host in (1, 2)]
        wires[0].flows[0, 0, 1] = EdgeFlows(address(1), address(2), (21001, 21002, 21003))
        got, names, used = [], [], []
        for lane in range(2):
            key = EdgeKey(lane, 0, 0, 1)
            out, into = await asyncio.gather(wires[0].open(key), wires[1].await_peer(key))
            await out.send(np.full(9, lane, np.uint8))
            got.append((await into.take()).tobytes())
            names += [sock.getpeername() for sock in into._sockets]
            used += [*out._sockets, *into._sockets]
        close(used)
        for task in (task for made in wires for task in made._accepting):
            task.cancel()
        return got, names

    got, names = asyncio.run(connect())
    assert got == [bytes(9), bytes([1] * 9)]
    assert names[:3] == [(address(1), port) for port in (21001, 21002, 21003)]
    assert {name for name, _ in names} == {address(1)}
    assert len(set(names)) == 6
