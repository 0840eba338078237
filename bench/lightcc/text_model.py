"""The transformer of 7 M parameters of subject ``outer``, and its trace for the simulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.arms import ROOT
from bench.subject import BenchError

SHAPE = {"context": 32, "width": 384, "blocks": 4, "heads": 4}


def build() -> tuple[Any, Any]:
    """Give the model and a batch, for ``sim.trace``."""
    import torch

    from bench.lightcc.small_models import Shape, Text

    shape = Shape(**SHAPE)
    return Text(shape), torch.zeros(1, shape.context, dtype=torch.long)


def trace(folder: str) -> str:
    """Write the model's file, and give the change of a topology file that takes it."""
    model = Path(folder, "model.yaml")
    done = subprocess.run([sys.executable, "-m", "sim.trace", f"{__file__}:build", "-o", model],
                          capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise BenchError(f"the model cannot be traced: {done.stderr.strip()}")
    return f"workload.model={model}"
