"""torch's own tests of process groups: a few of each kind; `torch_own_tests.py` runs all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.levels import long

pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("torch_own_tests.py")
PATIENCE_S = 900
CHOSEN = """
    all_reduce_sum_async all_reduce_max all_reduce_group_product all_reduce_sum_complex
    sparse_all_reduce_sum all_reduce_complex_unsupported_ops reduce_sum_twice
    all_reduce_coalesced_full_group_max
    reduce_group_max broadcast_group gather_checks scatter_full_group scatter_object_list
    all_gather_complex all_gather_coalesced_with_empty all_gather_object_subgroup
    all_to_all_single_unequal_split_group all_to_all_complex barrier_group get_future
    send_recv_any_source send_recv_with_tag isend irecv batch_isend_irecv_gloo_tags
    destroy_group get_rank_size_group ddp_create_graph static_graph_api_cpu
    DistributedDataParallelCPU_grad_is_view grads_same_across_ranks_with_no_sync
    accumulate_gradients_no_sync_allreduce_with_then_hook
"""


@long
def test_torchs_own_tests_pass():
    chosen = [f"TorchOwnTests.test_{name}" for name in CHOSEN.split()]
    run = subprocess.run([sys.executable, "-W", "ignore", PROGRAM, *chosen], check=False,
                         text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                         timeout=PATIENCE_S)
    assert run.returncode == 0, run.stderr[-3000:]
    assert f"Ran {len(chosen)} tests" in run.stderr
    skipped = re.search(r"OK \(skipped=(\d+)\)", run.stderr)
    assert skipped is None, run.stderr[-3000:]
