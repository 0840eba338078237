"""A rank of MPI, the reference; rank 0 obeys commands as torch_rank.py does.

It sums torch's memory, as the others do: numpy's lies on huge pages, which the kernel copies in
half the time. Between commands all ranks sleep, where MPI's own waiting would keep their cores
busy.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from mpi4py import MPI

NAP_S = 0.005
"""Ranks that wait for a command leave the CPUs to those that are measured."""


def next_command(world: Any) -> dict[str, Any]:
    """Return the next command, at all ranks."""
    if world.rank == 0:
        command = json.loads(sys.stdin.readline() or "{}")
        for peer in range(1, world.size):
            world.send(command, peer)
        return dict(command)
    while not world.Iprobe(0):
        time.sleep(NAP_S)
    return dict(world.recv(source=0))


def measure(world: Any, data: Any, nbytes: int, seconds: float, most: int) -> dict[str, float]:
    """Repeat an allreduce of float32 for about ``seconds``."""
    part = data[:nbytes // 4]
    begun = time.perf_counter()
    world.Allreduce(MPI.IN_PLACE, part)
    world.Allreduce(MPI.IN_PLACE, part)
    each = (time.perf_counter() - begun) / 2
    times = world.bcast(max(1, min(most, int(seconds / each))))
    world.Barrier()
    begun = time.perf_counter()
    for _ in range(times):
        world.Allreduce(MPI.IN_PLACE, part)
    return {"seconds": time.perf_counter() - begun, "times": times}


def main() -> None:
    """Answer until stdin ends."""
    world, data = MPI.COMM_WORLD, torch.zeros(8 << 20).numpy()
    if world.rank == 0:
        print("ready", flush=True)
    while command := next_command(world):
        answer = measure(world, data, **command)
        if world.rank == 0:
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
