"""Pictures a second of a network on random data, written for Horovod.

    harp run -np 2 python examples/lightcc/horovod_synthetic_benchmark.py
    LIGHT_TOPK_ALLREDUCE=1 harp run -np 2 python examples/lightcc/horovod_synthetic_benchmark.py
"""

import argparse
import timeit

import torch
import torch.nn.functional as F
from torch import nn, optim

import harp.lightcc.horovod.torch as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--num-warmup-batches", type=int, default=2)
parser.add_argument("--num-batches-per-iter", type=int, default=3)
parser.add_argument("--num-iters", type=int, default=3)
parser.add_argument("--width", type=int, default=2048, help="of the layers that are connected")


def build(width):
    """Small convolutions and large connected layers, as VGG has them."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(),
        nn.Linear(32 * 4 * 4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 1000))


def log(text):
    if hvd.rank() == 0:
        print(text)


if __name__ == "__main__":
    args = parser.parse_args()
    hvd.init()
    model = build(args.width)
    optimizer = optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                         compression=compression, op=hvd.Average)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    data = torch.randn(args.batch_size, 3, 64, 64)
    target = torch.randint(1000, (args.batch_size,))

    def benchmark_step():
        optimizer.zero_grad()
        F.cross_entropy(model(data), target).backward()
        optimizer.step()

    timeit.timeit(benchmark_step, number=args.num_warmup_batches)
    rates = []
    for at in range(args.num_iters):
        seconds = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
        rates.append(args.batch_size * args.num_batches_per_iter / seconds)
        log(f"iteration {at}: {rates[-1]:.1f} pictures/s a rank")
    rate = sum(rates) / len(rates)
    log(f"total on {hvd.size()} ranks: {hvd.size() * rate:.1f} pictures/s")
