"""Steps of the example's GPT under DeepSpeed, moments and masters on disk: run by its own Python.

    python -m bench.angelptm.deepspeed_steps FOLDER AIO SECONDS LAYERS WIDTH ROWS LENGTH

It prints a JSON of the seconds of a step. AIO is the object that DeepSpeed's tuner gave. The
example imports harp.angelptm as deepspeed; here it gets the real one under that name.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from bench.angelptm.capacity import library

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "angelptm" / "gpt.py"
WORDS = 1024
WARM_UP = 3
BUFFERS = 8
"""Tensors under way: two layers' worth, since a layer of the GPT has four large ones."""


def gpt(library: ModuleType, layers: int, width: int) -> torch.nn.Module:
    """Make the example's model."""
    package = ModuleType("harp")
    vars(package)["angelptm"] = library
    sys.modules |= {"harp": package, "harp.angelptm": library}
    spec = importlib.util.spec_from_file_location("gpt", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: torch.nn.Module = module.GPT(layers, width, width // 64)
    return model


def main() -> None:
    """Train for some time."""
    folder, aio, seconds, layers, width, rows, length = sys.argv[1:]
    deepspeed: Any = library("deepspeed")
    torch.manual_seed(0)
    engine, *_ = deepspeed.initialize(
        model=(model := gpt(deepspeed, int(layers), int(width))),
        model_parameters=model.parameters(), config={
            "train_micro_batch_size_per_gpu": int(rows), "optimizer": {"type": "AdamW"},
            "aio": json.loads(aio), "zero_optimization": {
                "stage": 3, "offload_optimizer": {
                    "device": "nvme", "nvme_path": folder, "buffer_count": BUFFERS,
                    "pipeline_read": True, "pipeline_write": True}}})
    tokens = torch.randint(0, WORDS, (int(rows), int(length) + 1))

    def step() -> None:
        logits = engine(tokens[:, :-1])
        engine.backward(torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, 1:].flatten()))
        engine.step()

    for _ in range(WARM_UP):
        step()
    begun, times = time.perf_counter(), 0
    while time.perf_counter() - begun < float(seconds):
        step()
        times += 1
    print(json.dumps({"seconds": (time.perf_counter() - begun) / times}), flush=True)
    os._exit(0)  # DeepSpeed's threads run on after its last line


if __name__ == "__main__":
    main()
