"""The backend of torch.distributed: a process a rank, as torchrun starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.levels import long, long_except
from tests.support.torch_ranks import PATIENCE_S, answers_of, start

torch = pytest.importorskip("torch")


TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
RANK = Path(__file__).with_name("rank.py")
NOTICED_S = 180
"""A tenth of the time after which torch gives up: a dead rank was noticed, not waited for."""


@pytest.mark.parametrize(("ranks", "port"), long_except(
    [(3, "udp"), (3, "tcp"), (4, "auto")], (3, "tcp")))
def test_collectives_are_right(ranks, port):
    assert answers_of(start(RANK, "collectives", ranks, HARP_PORT=port)) == ["right"] * ranks


@pytest.mark.long
@pytest.mark.parametrize("threads", long_except([1, 4], 4))
def test_threads_that_spin_for_the_same_cores_are_reported_once(threads):
    said = []
    for process in start(RANK, "ddp", 2, OMP_NUM_THREADS=str(threads)):
        said.append(process.communicate(PATIENCE_S)[1])
        assert process.returncode == 0
    lines = [line for line in "".join(said).splitlines() if "OMP_NUM_THREADS" in line]
    assert len(lines) == (threads > 1)
    assert all(line.startswith("2 ranks of this host compute with") for line in lines)


def test_ddp_trains_as_one_process_with_the_whole_batch_does():
    one, other = answers_of(start(RANK, "ddp", 2))
    assert one == other


@pytest.mark.parametrize("two_d", long_except(["0", "1"], "1"))
def test_the_hook_trains_with_the_largest_gradients_and_the_rest_later(two_d):
    answers = answers_of(start(
        RANK, "sparse", 4, LIGHT_TOPK_ALLREDUCE="1", LIGHT_TOPK_THRESHOLD="100",
        LIGHT_TOPK_RATIO="0.2", LIGHT_TOPK_FP16="1", LIGHT_2D_ALLREDUCE=two_d,
        LIGHT_INTRA_SIZE="2"))
    for answer in answers:
        assert answer["weights"] == answers[0]["weights"]
        assert answer["loss"] < answer["before"] / 3
        assert answer["errors"] > 0


@long
def test_the_hook_trains_in_few_bits():
    answers = answers_of(start(RANK, "sparse", 4, LIGHT_BITS="4", LIGHT_SMALL_THRESHOLD="100",
                               LIGHT_2D_ALLREDUCE="1", LIGHT_INTRA_SIZE="2"))
    for answer in answers:
        assert answer["weights"] == answers[0]["weights"]
        assert answer["loss"] < answer["before"] / 3
        assert answer["errors"] > 0


def test_powersgd_runs_over_the_backend():
    answers = answers_of(start(RANK, "powersgd", 2))
    for answer in answers:
        assert answer["weights"] == answers[0]["weights"]
        assert answer["loss"] < answer["before"] / 3
        assert answer["compressed"] > 0


@long
def test_powersgd_keeps_ranks_equal_however_many_buckets_there_are():
    one, other = answers_of(start(RANK, "powersgd_of_many", 2))
    assert one == other


@long
def test_leaving_a_group_ends_the_calls_of_other_threads():
    assert answers_of(start(RANK, "leaving", 2)) == ["right"] * 2


@long
def test_a_rank_missing_from_a_new_group_is_named_and_others_can_end():
    *said, _ = answers_of(start(RANK, "late_group", 3))
    assert said == ["the group was not made within 2 s: rank 2 did not come"] * 2


@long
def test_a_child_of_fork_gets_the_error_that_the_group_is_not_its_own():
    for said in answers_of(start(RANK, "forked", 2)):
        assert len(said) == 4
        assert all(one.startswith("this process is a child of fork") for one in said)


def test_a_killed_rank_is_an_error_at_every_other_rank_and_they_go_on_without_it(tmp_path):
    *others, last = start(RANK, "killed", 3, AGAIN=str(tmp_path / "again"))
    answers = answers_of(others)
    last.communicate(timeout=PATIENCE_S)
    assert last.returncode == 9
    for answer in answers:
        assert "rank 2 is gone" in answer["error"]
        assert answer["seconds"] < NOTICED_S
        assert answer["again"] == 3
    assert answers[0]["error"] == answers[1]["error"]


def test_a_rank_that_was_killed_is_not_waited_for_in_another_group():
    first, *others = start(RANK, "killed_between_groups", 3)
    answers = answers_of(others)
    first.communicate(timeout=PATIENCE_S)
    for answer in answers:
        assert len(answer["said"]) == 2
        assert all("rank 0 is gone, as another group of this process has found" in said
                   for said in answer["said"])
        assert answer["sum"] == 6


@pytest.mark.parametrize("how", ["ended", "destroyed"])
def test_a_rank_that_has_left_the_job_is_not_waited_for_in_another_group(how):
    first, *others = start(RANK, "left_between_groups", 3, HOW=how)
    answers = answers_of(others)
    first.communicate(timeout=PATIENCE_S)
    for answer in answers:
        assert len(answer["said"]) == 1
        assert "rank 0 has left the job's first group, and makes no other" in answer["said"][0]
        assert answer["sum"] == 18


def test_shapes_that_differ_are_the_same_error_at_every_rank():
    one, *others = answers_of(start(RANK, "different", 3))
    assert "rank 0 calls allreduce of 9 float32" in one
    assert set(others) == {one}


def test_types_that_differ_are_the_same_error_at_every_rank():
    """Else a rank would take other ranks' floats for integers, without a word."""
    one, other = answers_of(start(RANK, "types", 2))
    assert one == other
    for sentence in one:
        assert re.search("rank 0 calls .*int32.*, rank 1 calls .*float32", sentence)


def test_a_call_that_is_wrong_at_one_rank_is_a_sentence_there_and_the_group_lives():
    ranks = "the group has ranks 0 to 1"
    local = "a DTensor holds other tensors: the backend lightcc takes these, as to_local()"
    for rank, answer in enumerate(answers_of(start(RANK, "mistakes", 2))):
        wanted = [f"the root of a broadcast is rank 2: {ranks}",
                  f"the root of a broadcast is rank -1: {ranks}",
                  f"the root of a broadcast is rank 2: {ranks}",
                  *(f"the root of a {call} is rank 2: {ranks}"
                    for call in ("reduce", "gather", "scatter")),
                  f"the receiver of a message is rank 2: {ranks}",
                  f"the sender of a message is rank 2: {ranks}",
                  f"the sender of a message is rank {rank} itself",
                  "all_gather_into_tensor: 2 parts of 2 float32 do not fill 2 float64",
                  "a tensor of layout sparse_csr", "a tensor of layout nested", local, local]
        assert [said[:len(want)] for said, want in zip(answer["said"], wanted, strict=True)
                ] == wanted
        assert answer["sum"] == [2.0, 2.0]


BY_NAME = """
import torch, torch.distributed as dist
dist.init_process_group("lightcc", rank=0, world_size=1, store=dist.HashStore())
data = torch.ones(3)
dist.all_reduce(data)
print(dist.get_backend(), data.tolist())
"""


@pytest.mark.parametrize("torchcomms", long_except(["0", "1"], "0"))
def test_torch_finds_the_backend_by_its_name(torchcomms):
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", BY_NAME], text=True, check=False,
                         capture_output=True, timeout=PATIENCE_S,
                         env={**os.environ, "TORCH_DISTRIBUTED_USE_TORCHCOMMS": torchcomms})
    if TORCH < (2, 14):  # which asks for no backends of others
        assert "Unknown backend type lightcc" in run.stderr
    else:
        assert run.returncode == 0, run.stderr
        assert run.stdout == "lightcc [1.0, 1.0, 1.0]\n"


TORCHCOMMS = {"__init__.py": """
class _BackendWrapper: pass
def is_backend_built(name): return name in ("gloo", "nccl")
def new_comm(backend, device, **more): raise ModuleNotFoundError(f"failed to find {backend}")
""", "_comms.py": """
from torchcomms import _BackendWrapper
def _is_backend_registered(name): return False
""", "hooks.py": "class FlightRecorderHook: pass"}
"""All names that torch 2.13 and 2.14 import of torchcomms, which has no release to test with."""
SWITCHED = """
import harp.lightcc.torch, torch, torch.distributed as dist
assert dist.distributed_c10d._use_torchcomms_enabled()
dist.init_process_group("lightcc", rank=0, world_size=1, store=dist.HashStore())
data = torch.ones(3)
for group in (dist.group.WORLD, dist.new_group([0])):
    dist.all_reduce(data, group=group)
    print(type(group).__name__, data.tolist())
"""


@long
def test_where_torchcomms_is_switched_on_torch_keeps_the_backend_or_refuses_it(tmp_path):
    (tmp_path / "torchcomms").mkdir()
    for name, text in TORCHCOMMS.items():
        (tmp_path / "torchcomms" / name).write_text(text)
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", SWITCHED], text=True, check=False,
                         capture_output=True, timeout=PATIENCE_S, env={
                             **os.environ, "TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1",
                             "PYTHONPATH": str(tmp_path)})
    if TORCH < (2, 14):  # which gives torchcomms every name
        assert run.stderr.splitlines()[-1] == "ModuleNotFoundError: failed to find lightcc"
    else:
        assert run.stdout.splitlines() == ["LightGroup [1.0, 1.0, 1.0]"] * 2, run.stderr
