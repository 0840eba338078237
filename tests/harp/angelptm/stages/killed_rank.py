"""One rank of test_running.py: a rank of a pipeline is killed in a step behind the first one.

Usage: killed_rank.py VICTIM WHEN. The others print the error that ends them, with its kind.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import torch
import torch.distributed as dist

from harp.angelptm import pipeline
from tests.harp.angelptm.stages.models import batch, loss_of, made
from tests.support.leave import leave

MICROBATCHES = 4


def die(*_):
    """End as the kernel ends a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def spoil(running, when):
    """Have the next step end this rank."""
    module, = running.modules.values()
    if when == "before":
        die()
    elif when == "forward":
        module.register_forward_pre_hook(die)
    elif when == "backward":
        next(module.parameters()).register_hook(die)
    else:
        assert when == "exchange"
        running.add_up_shared = die


def main():
    """Train until a rank is gone."""
    victim, when = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group(os.environ["BACKEND"])
    example, target = batch("gpt", 2)
    running = pipeline(made("gpt"), example, dist.get_world_size(), loss=loss_of,
                       target=target).start("1f1b", MICROBATCHES)
    (words,), target = batch("gpt", 2 * MICROBATCHES)
    try:  # a rank may be killed before the others are through their first step
        running.step(words, target=target)
        if dist.get_rank() == victim:
            spoil(running, when)
        while True:  # a rank that the others do not wait for may be a step ahead
            running.step(words, target=target)
    except RuntimeError as error:
        print(json.dumps([type(error).__name__, str(error)]))
    leave()


if __name__ == "__main__":
    main()
