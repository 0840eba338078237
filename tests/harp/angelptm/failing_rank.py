"""One rank of test_rank_failures.py: meets one failure after another, the last rank at fault.

Usage: failing_rank.py JSON, an object of backend and folder. Prints a JSON of failure to the
sentence that this rank was given. It asserts that a sentence comes within the timeout.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import harp.angelptm
from tests.harp.angelptm.models import PAGE, Tied, batches, config, engine_of, seeded, train
from tests.support.leave import leave

TIMEOUT = timedelta(seconds=10)
TRAINING_S = 30
"""Most for the training itself, on a machine that is busy."""
PATIENCE = timedelta(seconds=120)


def of(last, **more):
    """A configuration of stage 3 in which the last rank may have something else."""
    own = config(device=16, host=150, zero_optimization={"stage": 3})
    if last:
        for key, value in more.items():
            own[key] = {**own[key], **value} if isinstance(own.get(key), dict) else value
    return own


def training(model, how, spoil=None):
    """Train, and have something happen at the last rank after two steps."""
    with engine_of(model, how) as engine:
        train(engine, batches(2))
        if spoil:
            spoil(engine)
        train(engine, batches(3))


class Deeper(Tied):
    """A model with one more parameter."""

    def __init__(self):
        super().__init__()
        self.more = torch.nn.Parameter(torch.zeros(3))


def other_model(last, folder):
    del folder
    training(seeded(Deeper if last else Tied), of(last))


def other_pages(last, folder):
    del folder
    training(seeded(), of(last, angelptm={"page_bytes": 2 * PAGE}))


def other_stage(last, folder):
    del folder
    training(seeded(), of(last, zero_optimization={"stage": 2}))


def other_counts(last, folder):
    """Of micro-batches in a step."""
    del folder
    training(seeded(), of(last, gradient_accumulation_steps=2))


def wrong_key(last, folder):
    del folder
    training(seeded(), of(last, gradient_cliping=1.0))


def no_folder(last, folder):
    training(seeded(), with_disk(f"{folder}/none" if last else folder))


def with_disk(folder):
    return config(device=13, host=24, angelptm={"disk_path": folder},
                  zero_optimization={"stage": 3})


def with_file(last, folder, spoil):
    """Train, and have something happen to the descriptor of the last rank's file."""
    def now(engine):
        del engine
        for name in Path("/proc/self/fd").iterdir() if last else ():
            if folder in str(name.resolve()):
                spoil(int(name.name))
    training(seeded(), with_disk(folder), now)


def truncated_file(last, folder):
    with_file(last, folder, lambda file: os.ftruncate(file, PAGE))


def full_disk(last, folder):
    with_file(last, folder, lambda file: os.dup2(os.open("/dev/full", os.O_RDWR), file))


def io_error(last, folder):
    def be_memory(file):
        """Be this process's memory, where nothing is mapped at the beginning."""
        first = Path("/proc/self/maps").read_text().partition("-")[0]
        assert int(first, 16) > os.fstat(file).st_size
        os.dup2(os.open("/proc/self/mem", os.O_RDWR), file)
    with_file(last, folder, be_memory)


def raises(last, folder):
    del folder
    steps = []

    def branch():
        steps.append(1)
        if last and len(steps) > 3:
            raise ValueError("the data are at their end")
        return False
    training(seeded(branch=branch), of(last))


def another_way(last, folder):
    del folder
    steps = []
    training(seeded(branch=lambda: steps.append(1) or (last and len(steps) > 3)), of(last))


def never_comes(last, folder):
    del folder

    def stay(engine):
        del engine
        if last:
            time.sleep(1.5 * TIMEOUT.total_seconds())
            raise RuntimeError("it came too late")
    training(seeded(), of(last), stay)


def killed(last, folder):
    del folder
    training(seeded(), of(last),
             lambda _: os.kill(os.getpid(), signal.SIGKILL) if last else None)


FAILURES = (other_model, other_pages, other_stage, other_counts, wrong_key, no_folder,
            truncated_file, full_disk, io_error, raises, another_way, never_comes, killed)


def main():
    """Meet them all."""
    asked, said = json.loads(sys.argv[1]), {}
    torch.set_num_threads(1)
    dist.init_process_group(asked["backend"], timeout=TIMEOUT)
    meeting = dist.new_group(timeout=PATIENCE)
    last = dist.get_rank() == dist.get_world_size() - 1
    for failure in FAILURES:
        if asked["only"] and failure.__name__ not in asked["only"]:
            continue
        dist.barrier(group=meeting)
        begun = time.monotonic()
        try:
            failure(last, asked["folder"])
            said[failure.__name__] = "nothing"
        except (harp.angelptm.RankError, ValueError, OSError, RuntimeError) as error:
            said[failure.__name__] = f"{type(error).__name__}: {error}"
        if not last:
            assert time.monotonic() - begun < TIMEOUT.total_seconds() + TRAINING_S
    print(json.dumps(said))
    leave()


if __name__ == "__main__":
    main()
