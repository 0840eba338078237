"""Images a second of torch's DDP on synthetic data; rank 0 prints them for all ranks.

Started by torchrun (torchrun.sh, kubernetes/pytorchjob.yaml). Needs torch and torchvision.
Without GPUs it trains on CPUs over gloo, which shows that the job is put together rightly and
nothing else.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
import torchvision


def main() -> None:
    """Warm up, then print the rate of each round and their mean."""
    wish = arguments()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    model = torchvision.models.get_model(wish.model).to(device)
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(wish.batch_size, 3, 224, 224, device=device)
    labels = torch.randint(1000, (wish.batch_size,), device=device)

    def steps(number: int) -> float:
        begin = time.perf_counter()
        for _ in range(number):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if cuda:
            torch.cuda.synchronize()
        return number * wish.batch_size * dist.get_world_size() / (time.perf_counter() - begin)

    steps(wish.num_warmup_batches)
    rates = [steps(wish.num_batches_per_iter) for _ in range(wish.num_iters)]
    if dist.get_rank() == 0:
        for number, rate in enumerate(rates):
            print(f"Iter #{number}: {rate:.1f} img/sec")
        print(f"{wish.model}, {dist.get_world_size()} ranks, batch {wish.batch_size}: "
              f"{sum(rates) / len(rates):.1f} img/sec")
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """Read the command line; the names are those of Horovod's synthetic benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vgg16", help="one of torchvision.models")
    parser.add_argument("--batch-size", type=int, default=128, help="images a rank and step")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    wish = parser.parse_args()
    if wish.model not in torchvision.models.list_models():
        parser.error(f"--model is {wish.model}: one of torchvision.models is wanted, as vgg16")
    return wish


if __name__ == "__main__":
    main()
