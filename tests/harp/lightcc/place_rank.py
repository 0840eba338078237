"""A rank for test_lightcc_places.py: STORE RANK RANKS WHAT=RANK, one line of JSON.

    user=RANK      that one is another user's
    killed=RANK    that one is killed while a call is under way
    killed_small=RANK   the same with calls of some bytes
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import sys
from functools import partial

import numpy as np

from harp.lightcc.group import Group, GroupError
from harp.lightcc.store import StoreClient

NOBODY = 65534


def user(rank: int, ranks: int, store: StoreClient, which: int) -> dict[str, object]:
    """Sum a vector where one rank belongs to another user."""
    if rank == which:
        "".encode("idna")  # what is imported later may not be readable for nobody
        concurrent.futures.ThreadPoolExecutor().shutdown()
        os.setresuid(NOBODY, NOBODY, NOBODY)
    return summed(rank, ranks, store)


def summed(rank: int, ranks: int, store: StoreClient) -> dict[str, object]:
    """Sum a vector; with whom memory was shared, and whether the sum is right."""
    group = Group(rank, ranks, store)
    data = np.full(300_001, rank + 1, np.float32)
    group.allreduce(data.view(np.uint8), "float32").result()
    near = [peer for peer, connection in group._peers.pieces.items()
            if not connection.info.counters["data_sent"] and group._peers.places[peer]
            == group._peers.places[rank]]
    group.close()
    return {"near": sorted(near), "right": bool((data == sum(range(ranks + 1))).all())}


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
    print(json.dumps({"user": user, "killed": killed,
                      "killed_small": partial(killed, elements=2)}[what](
        own, count, StoreClient(path, 60.0), int(of))), flush=True)
