"""A rank for test_lightcc_shared.py: STORE RANK RANKS WHAT=RANK, one line of JSON.

    private=RANK   no rank may read any process, and the memory of that one is its own
    user=RANK      no rank may read processes of other users, and that one is another user's
    killed=RANK    that one is killed while a call is under way
    killed_small=RANK   the same with calls of some bytes
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import json
import os
import signal
import sys
from functools import partial

import numpy as np

from harp.lightcc.group import Group, GroupError
from harp.lightcc.store import StoreClient

PR_SET_DUMPABLE = 4
CAPABILITY_VERSION_3, CAP_SYS_PTRACE = 0x20080522, 19
NOBODY = 65534


def give_up_ptrace() -> None:
    """Give up the right to read any process; the threads to come inherit that."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    for which in (0, 1):  # effective, permitted
        sets[which] &= ~(1 << CAP_SYS_PTRACE)
    assert libc.capset(header, sets) == 0


def private(rank: int, ranks: int, store: StoreClient, which: int) -> dict[str, object]:
    """Sum a vector where one rank cannot be read."""
    give_up_ptrace()
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, int(rank != which), 0, 0, 0)
    return summed(rank, ranks, store)


def user(rank: int, ranks: int, store: StoreClient, which: int) -> dict[str, object]:
    """Sum a vector where one rank belongs to another user."""
    give_up_ptrace()
    if rank == which:
        "".encode("idna")  # what is imported later may not be readable for nobody
        concurrent.futures.ThreadPoolExecutor().shutdown()
        os.setresuid(NOBODY, NOBODY, NOBODY)
    return summed(rank, ranks, store)


def summed(rank: int, ranks: int, store: StoreClient) -> dict[str, object]:
    """Sum a vector; whose memory was read, and whether the sum is right."""
    group = Group(rank, ranks, store)
    data = np.full(300_001, rank + 1, np.float32)
    group.allreduce(data.view(np.uint8), "float32").result()
    reads = group._peers.shared.reads
    group.close()
    return {"reads": sorted(reads), "right": bool((data == sum(range(ranks + 1))).all())}


def killed(rank: int, ranks: int, store: StoreClient, which: int,
           elements: int = 4 << 20) -> dict[str, object]:
    """Sum a vector again and again, until one is gone."""
    group = Group(rank, ranks, store)
    data = np.zeros(elements, np.float32)
    for call in range(1000):
        done = group.allreduce(data.view(np.uint8), "float32")
        if rank == which and call == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            done.result()
        except GroupError as error:
            group.close()
            return {"error": str(error)}
    return {"error": "it was not noticed"}


if __name__ == "__main__":
    path, own, count, (what, _, of) = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), \
        sys.argv[4].partition("=")
    print(json.dumps({"private": private, "user": user, "killed": killed,
                      "killed_small": partial(killed, elements=2)}[what](
        own, count, StoreClient(path, 60.0), int(of))), flush=True)
