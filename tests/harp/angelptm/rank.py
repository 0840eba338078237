"""One rank of test_ranks.py: trains the small model in each variant that it is asked for.

Usage: rank.py JSON, an object of backend and ways; each way has steps and a configuration, which
may be "torch" for DistributedDataParallel. An engine may load a checkpoint before it trains, save
one before some step, or save one after each step without an end; it may forget its gradients and
have them again before each step. Prints a JSON of way to losses, a
hash of the parameters, and their largest distance from torch's.
"""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import harp.lightcc.torch  # noqa: F401  (it registers the backend)
from tests.harp.angelptm.models import (
    RATE,
    batches,
    engine_of,
    loss_of,
    parameters_of,
    seeded,
    train,
)
from tests.support.leave import leave

TIMEOUT = timedelta(seconds=60)


def parts(number):
    """This rank's rows of each batch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return [tokens[rank::ranks] for tokens in batches(number)]


def by_engine(config, steps, load=None, save=None, at=0, for_ever=False, branch=(),
              same=False, forgets=False):
    """Train in pages; rank 0 alone has the right values at the beginning."""
    passes = count()
    model = seeded(seed=dist.get_rank(), branch=lambda: next(passes) in branch)
    with engine_of(model, config) as engine:
        if load:
            engine.load_checkpoint(load)
        data = (parts(1) * steps if same else parts(steps))[engine.global_steps:]
        losses = train(engine, data[:at])
        if save:
            engine.save_checkpoint(save, "saved")
            engine.save_16bit_model(save)
        for tokens in data if forgets else ():
            engine.backward(loss_of(engine, tokens[:2]))
            engine.optimizer.zero_grad()
            losses += train(engine, [tokens])
        while for_ever:
            train(engine, data[:1])
            engine.save_checkpoint(save, "saved")
            print("saved", flush=True)
        losses += train(engine, () if forgets else data[at:])
        return losses, parameters_of(engine), {
            "planned": engine._steps.planned, "diverged": engine._steps.diverged,
            "tiers": sorted({tier for tier, _ in engine.cache.where})}


def by_torch(steps):
    """Train with torch alone."""
    model = seeded()
    ranks = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses = []
    for tokens in parts(steps):
        loss = loss_of(ranks, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [one.detach() for one in model.parameters()], {}


def main():
    """Train all variants in their order."""
    asked, found, expected = json.loads(sys.argv[1]), {}, None
    torch.set_num_threads(1)
    dist.init_process_group(asked["backend"], timeout=TIMEOUT)
    for name, way in asked["ways"].items():
        losses, parameters, more = (by_torch(way["steps"]) if way["config"] == "torch" else
                                    by_engine(**way))
        flat = torch.cat([one.reshape(-1) for one in parameters])
        if way["config"] == "torch":
            expected = flat
        if expected is not None:
            more["error"] = float((flat - expected).abs().max())
        found[name] = {"losses": losses, **more,
                       "bits": hashlib.sha256(flat.numpy().tobytes()).hexdigest()}
    print(json.dumps(found))
    dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    main()
