"""Plans over real HARP connections: what the in-memory channels are held to, the stack does."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import numpy as np
import pytest

from harp.collectives.execute import Execution
from harp.collectives.ir import Buffer
from harp.collectives.registry import make_plan
from harp.collectives.window import Window
from harp.net.channel import ConnectionChannel
from harp.net.engine import Engine
from harp.net.errors import EndedError
from tests.support.levels import each_once

RANKS = 4
PORTS = {"mem": {"kind": "mem"}, "udp": {"kind": "udp", "address": "127.0.0.1"},
         "lossy udp": {"kind": "udp", "address": "127.0.0.1", "faults": "drop=2%,seed=7"}}


async def connect_all(engines: list[Engine], window: Window) -> list[dict[int, ConnectionChannel]]:
    channels: list[dict[int, ConnectionChannel]] = [{} for _ in engines]
    for near in range(RANKS):
        for far in range(near):
            listener = engines[far].listen()
            one, other = await asyncio.gather(engines[near].connect_async(listener.handle),
                                              listener.accept_async())
            listener.close()
            channels[near][far] = ConnectionChannel(one, window)
            channels[far][near] = ConnectionChannel(other, window)
    return channels


def run(port: dict[str, str], name: str, inputs: np.ndarray, window: Window) -> list[np.ndarray]:
    plan = make_plan(name, ranks=RANKS, nbytes=inputs[0].nbytes, unit_bytes=inputs.itemsize,
                     group=2, chunk_bytes=window.slot_bytes)

    async def go(engines: list[Engine]) -> list[np.ndarray]:
        channels = await connect_all(engines, window)
        ranks = [Execution(plan, rank, inputs.dtype, channels[rank].__getitem__, window)
                 for rank in range(RANKS)]
        for rank, own in zip(ranks, inputs, strict=True):
            rank.buffers[Buffer.DATA][:] = own.view(np.uint8)
        await asyncio.gather(*(rank.run() for rank in ranks))
        await asyncio.gather(*(end.flush() for own in channels for end in own.values()))
        out = Buffer.OUT if "alltoall" in name else Buffer.DATA
        return [rank.buffers[out].view(inputs.dtype) for rank in ranks]

    with ExitStack() as stack:
        kind, options = port["kind"], {key: port[key] for key in port if key != "kind"}
        engines = [stack.enter_context(Engine(kind, **options)) for _ in range(RANKS)]
        return asyncio.run(go(engines))


@pytest.mark.parametrize(("name", "over"), each_once(
    ["ring", "tree", "halving-doubling", "2d"], PORTS))
def test_an_allreduce_over_sessions_is_the_sum(name, over):
    port = PORTS[over]
    inputs = np.random.default_rng(1).integers(-99, 99, (RANKS, 50_001)).astype("<i4")
    for result in run(port, name, inputs, Window(2, 4096)):
        np.testing.assert_array_equal(result, inputs.sum(axis=0, dtype="<i4"))


@pytest.mark.parametrize("name", ["alltoall", "hierarchical-alltoall"])
def test_an_alltoall_over_sessions_is_the_transpose(name):
    inputs = np.arange(RANKS * 4000, dtype="<i8").reshape(RANKS, 4000)
    for rank, result in enumerate(run(PORTS["udp"], name, inputs, Window())):
        np.testing.assert_array_equal(result, inputs[:, 1000 * rank:1000 * (rank + 1)].ravel())


def test_arrivals_before_the_end_can_be_taken_after_it():
    """The other end sends, sees that all has come, and leaves; this one reads slowly."""
    async def go(near: Engine, far: Engine) -> list[int]:
        listener = far.listen()
        ours, theirs = await asyncio.gather(near.connect_async(listener.handle),
                                            listener.accept_async())
        channel, other = ConnectionChannel(ours), ConnectionChannel(theirs)
        first = asyncio.ensure_future(channel.take())
        for i in range(Window().slots + 2):
            await other.send(np.full(3, i, np.uint8))
        taken = [int((await first)[0])]
        await other.flush()
        theirs.close()
        while not ours.closed:
            await asyncio.sleep(0)  # lets the engine's thread work
            _ = ours.segment  # asks what the network did
        taken += [int((await channel.take())[0]) for _ in range(Window().slots + 1)]
        with pytest.raises(EndedError):
            await channel.take()
        return taken

    with Engine("mem") as near, Engine("mem") as far:
        assert asyncio.run(go(near, far)) == list(range(Window().slots + 2))
