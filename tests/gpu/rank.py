"""One rank of two: collectives whose results are known, then a training whose losses are kept.

    python rank.py RANK STORE OUT [--backend nccl|gloo|lightcc|nccl+hook|gloo+hook]

The ranks meet over the file STORE and write their findings to the file OUT, as JSON. Both ranks use
the first GPU. With hook DDP's gradients go by LightCC's hook over the backend. Needs torch, for
lightcc and the hook harp, and nothing else; run.py starts it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before torch: products are repeatable

import torch
import torch.distributed as dist

SIZES = (1, 1000, 1 << 20, (1 << 22) + 3)
"""Elements: a lone one, LL's, several channels', and what no unit divides."""
STEPS = 50


class Rank:
    """Work of both ranks, in the same order."""

    def __init__(self, rank: int, device: torch.device) -> None:
        self.rank, self.other, self.device = rank, 1 - rank, device

    def values(self, count: int, rank: int) -> torch.Tensor:
        """Give numbers that encode rank and place, small enough for exact sums."""
        place = torch.arange(count, device=self.device, dtype=torch.float32)
        return place % 8191 + 8192 * (rank + 1)

    def expect(self, what: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
        if not torch.equal(found, wanted):
            at = int((found != wanted).nonzero()[0, 0])
            raise SystemExit(f"rank {self.rank}: {what}: element {at} is {found[at].item()}, "
                             f"not {wanted[at].item()}")

    def all_reduce(self, count: int) -> None:
        data = self.values(count, self.rank)
        dist.all_reduce(data)
        self.expect("all_reduce", data, self.values(count, 0) + self.values(count, 1))

    def all_gather(self, count: int) -> None:
        data = torch.empty(2 * count, device=self.device)
        dist.all_gather_into_tensor(data, self.values(count, self.rank))
        self.expect("all_gather", data, torch.cat([self.values(count, rank) for rank in (0, 1)]))

    def reduce_scatter(self, count: int) -> None:
        data = torch.empty(count, device=self.device)
        dist.reduce_scatter_tensor(data, self.values(2 * count, self.rank))
        both = self.values(2 * count, 0) + self.values(2 * count, 1)
        self.expect("reduce_scatter", data, both[self.rank * count:(self.rank + 1) * count])

    def send_recv(self, count: int) -> None:
        data = torch.empty(count, device=self.device)
        both = [dist.P2POp(dist.isend, self.values(count, self.rank), self.other),
                dist.P2POp(dist.irecv, data, self.other)]
        for request in dist.batch_isend_irecv(both):
            request.wait()
        self.expect("send/recv", data, self.values(count, self.other))

    def training(self, host: str | None = None) -> list[str]:
        """Train by DDP for some steps; the losses as exact text. By the hook where a host is named.
        """
        torch.manual_seed(7)
        torch.use_deterministic_algorithms(True)
        model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(),
                                    torch.nn.Linear(512, 512), torch.nn.GELU(),
                                    torch.nn.Linear(512, 10)).to(self.device)
        model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
        if host is not None:
            self.hook(model, host)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        own = torch.Generator().manual_seed(100 + self.rank)
        losses = []
        for _ in range(STEPS):
            images = torch.randn(64, 256, generator=own).to(self.device)
            labels = images[:, :10].argmax(1)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.item()).hex())
        return losses


    def hook(self, model: torch.nn.parallel.DistributedDataParallel, host: str) -> Any:
        """Have gradients averaged by LightCC's hook."""
        from harp.lightcc.hook import GradientState, average_gradients

        state = GradientState(host=host)
        model.register_comm_hook(state, average_gradients)
        return state

    def hook_training(self) -> list[str]:
        """Train with both ranks on one host, where the backend sums, and on two, by LightCC.

        A sum of two has one result, whoever makes it.
        """
        together, apart = self.training("one"), self.training(f"host {self.rank}")
        if together != apart:
            raise SystemExit(f"rank {self.rank}: losses on one host are not those on two")
        return together

    def hook_failure(self) -> None:
        """Rank 1 fails before it calls the backend, in which rank 0 waits for it: both fail."""
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(1000, 1000).to(self.device))
        state = self.hook(model, "one")
        inputs = torch.ones(4, 1000, device=self.device)
        model(inputs).sum().backward()
        if self.rank == 1:
            state.memory_of = None
        said = ""
        try:
            model(inputs).sum().backward()
        except (RuntimeError, TypeError) as error:
            said = str(error)
        if not said or (self.rank == 0 and "rank 1 could not average gradients" not in said):
            raise SystemExit(f"rank {self.rank}: a failure of rank 1 ended the step by {said!r}")


def versions(device: torch.device) -> dict[str, str]:
    """Names in the log."""
    found = {"torch": torch.__version__, "python": platform.python_version(),
             "kernel": platform.release()}
    if device.type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda),
                  "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return found


def main() -> None:
    """Run everything; whatever is wrong ends the process with another status than 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rank", type=int)
    parser.add_argument("store")
    parser.add_argument("out", type=Path)
    parser.add_argument("--backend", default="nccl",
                        choices=["nccl", "gloo", "lightcc", "nccl+hook", "gloo+hook"])
    wish = parser.parse_args()
    backend, _, hook = wish.backend.partition("+")
    if backend == "lightcc" or hook:
        import harp.lightcc.torch  # noqa: F401  (registers the backend)
    on_cpu = backend == "gloo" or not torch.cuda.is_available()
    device = torch.device("cpu") if on_cpu else torch.device("cuda", 0)
    dist.init_process_group(backend, init_method=f"file://{wish.store}", rank=wish.rank,
                            world_size=2, timeout=datetime.timedelta(seconds=120))
    rank = Rank(wish.rank, device)
    seconds = {}
    for work in (rank.all_reduce, rank.all_gather, rank.reduce_scatter, rank.send_recv):
        begin = time.perf_counter()
        for count in SIZES:
            work(count)
        seconds[work.__name__] = round(time.perf_counter() - begin, 3)
    begin = time.perf_counter()
    losses = rank.hook_training() if hook else rank.training()
    seconds["training"] = round(time.perf_counter() - begin, 3)
    if hook:
        rank.hook_failure()
    dist.barrier()
    dist.destroy_process_group()
    wish.out.write_text(json.dumps({"losses": losses, "seconds": seconds,
                                    "versions": versions(device)}))


if __name__ == "__main__":
    main()
