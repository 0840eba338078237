"""Features that torch builds on process groups work over lightcc: one job of ranks for them all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("features.py")
PATIENCE_S = 400
FEATURES = """
    functional_collectives functional_gradients gradients_of_what_ends_late compiled_ddp
    dtensor mesh_of_two_dimensions tensor_parallel
    fsdp1 fsdp2 hybrid_sharded pipelining zero_redundancy_optimizer distributed_checkpoint
    tensors_of_all_kinds sparse_gradients futures uneven_inputs new_groups batches_of_messages
    gradients_in_few_bits two_groups_from_two_threads fork_of_data_loader timeouts abort
"""


def test_features_of_torch_distributed_work_over_the_backend():
    run = subprocess.run([sys.executable, "-W", "ignore", PROGRAM], check=False, text=True,
                         capture_output=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert {name: why for name, why in found.items() if why != "right"} == {}
    assert set(found) == set(FEATURES.split())
