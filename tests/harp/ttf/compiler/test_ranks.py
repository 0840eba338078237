"""One rank compiles for all: the others take its decision, and find its code in torch's caches."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support import PATIENCE_S
from tests.support.levels import long

RANK = """
import json, sys, torch
import torch.distributed as dist
from torch._dynamo.utils import counters
import harp.ttf
from tests.support.leave import leave
rank, file = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
model = harp.ttf.compile(net, learn=3 + rank, after_s=0, backend=sys.argv[3])
optimizer = torch.optim.AdamW(net.parameters())
step = harp.ttf.compile(optimizer, after_s=0, backend=sys.argv[3])
for size in (4, 6, 8, 4, 5):
    model(torch.randn(size, 8)).sum().backward()
    step()
model.wait()
if rank == 0:
    step.wait()
    step()  # compiles, if that pays, and lets the other rank know
step.wait()
right = net(torch.ones(7, 8))
assert torch.allclose(model(torch.ones(7, 8)), right, atol=1e-5)
dist.barrier()
print(json.dumps({"compiled": counters["inductor"]["fxgraph_cache_miss"],
                  "found": counters["inductor"]["fxgraph_cache_hit"],
                  "decisions": model.decisions() + step.decisions()}))
leave()
"""


def run(tmp_path, backend):
    ranks = [subprocess.Popen(
        [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store"), backend],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={"PATH": "/usr/bin:/bin", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"cache-{rank}"),
             "PYTHONPATH": ":".join(sys.path)}) for rank in range(2)]
    answers = []
    for rank in ranks:
        out, err = rank.communicate(timeout=PATIENCE_S)
        assert rank.returncode == 0, err
        answers.append(json.loads(out.splitlines()[-1]))
    return answers


def test_other_ranks_take_the_first_ones_decision(tmp_path):
    first, second = run(tmp_path, "aot_eager")
    assert first["decisions"] == second["decisions"]
    assert "1000 calls" in first["decisions"][0]
    assert "1000 steps take" in first["decisions"][1]


@long
def test_other_ranks_compile_nothing(tmp_path):
    first, second = run(tmp_path, "inductor")
    assert first["compiled"] > 0
    assert second["compiled"] == 0
    assert second["found"] > 0
