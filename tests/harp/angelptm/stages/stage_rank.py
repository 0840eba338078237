"""One rank of test_running.py, under torchrun's variables; prints what it found."""

import json
import os
import sys

import torch
import torch.distributed as dist

import harp.angelptm
from tests.harp.angelptm.stages.models import batch, loss_of, made
from tests.support.leave import leave

MICRO = 2


def check(name, between, stages, schedule, microbatches):
    """Train two steps, cut and whole."""
    model = made(name)
    example, target = batch(name, MICRO)
    pipe = harp.angelptm.pipeline(model, example, stages=stages, loss=loss_of, target=target,
                                  between=between)
    running = pipe.start(schedule, microbatches)
    whole = made(name)
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (running, whole)]
    for step in range(2):
        arguments, target = batch(name, MICRO * microbatches, seed=2 + step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = running.step(*arguments, target=target)
        parts = [one.chunk(microbatches) for one in (*arguments, target)]
        wanted = [loss_of(whole(*(part[number] for part in parts[:-1])), parts[-1][number])
                  for number in range(microbatches)]
        (sum(wanted) / microbatches).backward()
        if loss is not None:
            torch.testing.assert_close(loss, (sum(wanted) / microbatches).detach())
        others = dict(whole.named_parameters())
        own = dict(running.named_parameters())
        for each, parameter in own.items():
            torch.testing.assert_close(parameter.grad, others[each].grad, msg=each)
        for optimizer in optimizers:
            optimizer.step()
        for each, parameter in own.items():
            torch.testing.assert_close(parameter, others[each], msg=each)
    return {"gaps": pipe.cuts.gaps, "own": sorted(own)}


def main():
    torch.set_num_threads(1)
    dist.init_process_group(os.environ["BACKEND"])
    print(json.dumps([check(*case) for case in json.loads(sys.argv[1])]))
    dist.barrier()
    dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    main()
