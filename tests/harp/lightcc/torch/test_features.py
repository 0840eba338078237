"""Features that torch builds on process groups work over lightcc: one job of ranks for them all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.levels import long
from tests.support.torch_ranks import run_alone

PROGRAM = Path(__file__).with_name("features.py")
QUICK = "functional_collectives fsdp2 full_checkpoint tensors_of_all_kinds abort"
FEATURES = f"""{QUICK}
    dtensor pipelining functional_gradients gradients_of_what_ends_late compiled_ddp
    mesh_of_two_dimensions tensor_parallel fsdp1 hybrid_sharded zero_redundancy_optimizer
    distributed_checkpoint sparse_gradients futures uneven_inputs new_groups batches_of_messages
    gradients_in_few_bits two_groups_from_two_threads fork_of_data_loader timeouts
"""


@pytest.mark.parametrize("features", [QUICK, pytest.param(FEATURES, marks=long)],
                         ids=["quick", "all"])
def test_features_of_torch_distributed_work_over_the_backend(features):
    run = run_alone(PROGRAM, *features.split())
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert {name: why for name, why in found.items() if why != "right"} == {}
    assert set(found) == set(features.split())
