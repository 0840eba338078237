"""Random operations on four ranks over a network that loses, doubles and breaks datagrams, and now
and then straight through memory.

    python -m tests.harp.lightcc.soak 600 [SEED]   for ten minutes

Every result is checked against numpy. Now and then a rank aborts or calls something else; then
every rank must hear the same sentence, and the ranks make a new group. Prints what was done.
"""

import os
import sys
import time
from collections import Counter

import numpy as np

from harp.lightcc.settings import LightSettings
from tests.harp.lightcc.checks import begin_any
from tests.harp.lightcc.test_group import PATIENCE_S, group_of, of_all

RANKS = 4
FAULTS = "drop=1%,duplicate=1%,corrupt=1%,reorder=2%,seed={seed}"
SETTINGS = ({}, {"LIGHT_2D_ALLREDUCE": 1, "LIGHT_INTRA_SIZE": 2}, {"LIGHT_SMALL_THRESHOLD": 0})


def abort(group, random):
    ending = group[int(random.integers(RANKS))]
    waiting = [rank.barrier() for rank in group if rank is not ending]
    ending.abort()
    return waiting


def disagree(group, random):
    odd = int(random.integers(RANKS))
    return [rank.allreduce(np.zeros(8 + 4 * (i == odd), np.uint8), "float32")
            for i, rank in enumerate(group)]


def soak(group, random, rounds):
    """Carry out rounds of calls, several at once, and end the group; counts the calls."""
    done = Counter()
    for _ in range(rounds):
        begun = [begin_any(group, random) for _ in range(int(random.integers(1, 6)))]
        of_all(future for futures, _ in begun for future in futures)
        for _, check in begun:
            check()
        done["checked"] += len(begun)
    failing = (abort, disagree)[int(random.integers(2))]
    said = {str(future.exception(PATIENCE_S)) for future in failing(group, random)}
    assert len(said) == 1, said
    assert "None" not in said
    done[f"failed by {failing.__name__}"] += 1
    return done


def soak_for(seconds, seed, rounds=50):
    """Make groups for so long."""
    random, done = np.random.default_rng(seed), Counter()
    until = time.monotonic() + seconds
    while not done or time.monotonic() < until:
        port = str(random.choice(["udp", "udp", "mem", "auto"]))
        faults = FAULTS.format(seed=int(random.integers(1, 1 << 30)))
        os.environ["HARP_PORT"], os.environ["HARP_FAULTS"] = port, "" if port == "auto" else faults
        settings = LightSettings.from_env(SETTINGS[int(random.integers(len(SETTINGS)))])
        with group_of(RANKS, settings=settings) as group:
            done += soak(group, random, rounds)
        done["groups"] += 1
    return done


if __name__ == "__main__":
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 1_000_000
    print(f"seed {seed}", flush=True)
    print(dict(soak_for(float(sys.argv[1]), seed)))
