"""Connections in coroutines."""

import asyncio

import numpy as np
import pytest

import harp
from tests.harp.net.pairs import PATIENCE_S, engine, pair, pattern


@pytest.mark.parametrize("progress", ["thread", "inline"])
def test_asyncio(progress):
    async def serve(listener):
        connection = await listener.accept_async()
        while True:
            try:
                got = await connection.recv_async(1 << 20)
            except harp.Closed:
                return connection
            await connection.send_async(got)

    async def ask(near, count):
        for i in range(count):
            question = pattern(i * 1000, i)
            sent = near.send(question)
            assert np.array_equal(np.frombuffer(await near.recv_async(), np.uint8), question)
            assert await sent == question.size
        near.close()

    async def both():
        with engine(progress=progress) as a, engine(progress=progress) as b:
            server = asyncio.create_task(serve(b.listen()))
            near = await a.connect_async(b._listeners.pop().handle)
            await asyncio.wait_for(asyncio.gather(ask(near, 20), server), PATIENCE_S)

    asyncio.run(both())


def test_many_coroutines_wait_for_one_connection():
    async def run():
        with pair() as (a, b):
            receives = [asyncio.create_task(b.recv_async(10)) for _ in range(50)]
            sends = [asyncio.create_task(a.send_async(b"%d" % i)) for i in range(50)]
            await asyncio.wait_for(asyncio.gather(*sends), PATIENCE_S)
            got = await asyncio.wait_for(asyncio.gather(*receives), PATIENCE_S)
            assert [int(bytes(one)) for one in got] == list(range(50))

    asyncio.run(run())


def test_a_streamed_connection_in_asyncio():
    async def run():
        with pair(far={"streamed": 64}) as (a, b):
            a.send(pattern(1_000_000))
            got = np.zeros(1_000_000, np.uint8)
            async for chunk in b.stream():
                with chunk:
                    got[chunk.offset:chunk.offset + len(chunk)] = memoryview(chunk)
            assert np.array_equal(got, pattern(1_000_000))

    asyncio.run(run())


def test_asyncio_waits_are_ended_by_a_close_and_by_a_timeout():
    async def run():
        with pair() as (_, b):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(b.recv_async(), 0.02)
            waiting = asyncio.create_task(b.recv_async())
            await asyncio.sleep(0)
            b.close()
            with pytest.raises(harp.Closed):
                await asyncio.wait_for(waiting, PATIENCE_S)

    asyncio.run(run())
