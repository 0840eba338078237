"""One model that trains, or does not: a script of its own, for a control group's limit.

    capacity.py harp|deepspeed LAYERS

It prints "trained" after two steps. Under DeepSpeed the Python is another one, in which this
project is not installed.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import torch

WIDTH, BATCH = 1024, 4
"""Of a layer and of the input."""
STEPS = 2


class Layers(torch.nn.Module):
    """Equal layers, as many as wanted, in 16 bits from the start."""

    def __init__(self, layers: int, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(width, width, bias=False, dtype=torch.bfloat16)
            for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Go through all layers."""
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


def job_of_one() -> None:
    """Set what torch.distributed reads, since DeepSpeed asks for it with one rank, too."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))


def library(name: str) -> Any:
    """Import what trains."""
    if name == "harp":
        import harp.angelptm
        return harp.angelptm
    import deepspeed
    job_of_one()
    deepspeed.init_distributed("gloo")
    return deepspeed


def main() -> None:
    """Train."""
    name, layers = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    offload = {"device": "cpu"}
    engine, *_ = library(name).initialize(model=(model := Layers(layers)),
                                          model_parameters=model.parameters(), config={
        "train_micro_batch_size_per_gpu": BATCH, "optimizer": {"type": "AdamW"},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": offload, "offload_param": offload}})
    for _ in range(STEPS):
        engine.backward(engine(torch.ones(BATCH, WIDTH, dtype=torch.bfloat16)).sum())
        engine.step()
    print("trained", flush=True)
    os._exit(0)  # DeepSpeed's threads run on after its last line


if __name__ == "__main__":
    main()
