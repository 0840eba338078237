"""Decisions in a folder, and what torch compiled for them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")


from harp.ttf.compiler.decisions import Decision, Kept, fingerprint  # noqa: E402
from tests.harp.ttf.compiler.eager_twins import (  # noqa: E402
    Graphs,
    Rows,
    compare,
    settled,
    twins,
)
from tests.support import PATIENCE_S  # noqa: E402
from tests.support.levels import long  # noqa: E402

# Torch's own, when it loads inductor.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")

SECOND_START = """
import json, sys, torch
from torch._dynamo.utils import counters
import harp.ttf
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
model = harp.ttf.compile(net, cache=sys.argv[1], learn=3, aside=False)
step = harp.ttf.compile(torch.optim.AdamW(net.parameters()), cache=sys.argv[1], aside=False)
for size in (4, 6, 8, 4, 5, 7):
    model(torch.randn(size, 8)).sum().backward()
    step()
model.wait()
print(json.dumps({"compiled": counters["inductor"]["fxgraph_cache_miss"],
                  "found": counters["inductor"]["fxgraph_cache_hit"],
                  "decisions": model.decisions()}))
"""


@long
def test_a_second_start_compiles_nothing(tmp_path):
    answers = []
    for start in ("first", "second"):
        done = subprocess.run(
            [sys.executable, "-c", SECOND_START, str(tmp_path / "kept")], check=False, text=True,
            capture_output=True, timeout=PATIENCE_S,
            env={"PATH": "/usr/bin:/bin", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / start),
                 "PYTHONPATH": ":".join(sys.path)})
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    first, second = answers
    assert first["compiled"] > 0
    assert second["compiled"] == 0
    assert second["found"] > 0
    assert second["decisions"] == first["decisions"]


SPREAD_STARTS = """
import json, sys, torch
from torch._dynamo.utils import counters
import harp.ttf
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Linear(8, 1)
model = harp.ttf.compile(net, cache=sys.argv[1], learn=1, aside=False)
for kind in sys.argv[2]:
    rows = {"a": (4, 8), "b": (2, 3, 8)}[kind]
    for _ in range(2):
        model(torch.randn(*rows)).sum().backward()
print(json.dumps(counters["inductor"]["fxgraph_cache_miss"]))
"""


@long
def test_a_start_that_adds_to_a_cache_keeps_what_others_compiled(tmp_path):
    def misses(start, kinds):
        done = subprocess.run(
            [sys.executable, "-c", SPREAD_STARTS, str(tmp_path / "kept"), kinds], check=True,
            text=True, capture_output=True, timeout=PATIENCE_S,
            env={"PATH": "/usr/bin:/bin", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / start),
                 "PYTHONPATH": ":".join(sys.path)})
        return json.loads(done.stdout.splitlines()[-1])
    assert misses("first", "a") > 0
    assert misses("second", "b") > 0
    assert misses("third", "ab") == 0


def test_a_cache_that_cannot_be_read_is_a_warning(tmp_path, caplog):
    (tmp_path / "decisions.json").write_text("{")
    module, eager = twins(Rows)
    compiled = settled(module, Graphs(), cache=tmp_path)
    assert "holds no decisions that can be read" in caplog.text
    compare(compiled, eager, [4] * 8)


DECISION = Decision(dimensions=((0, 1), (2, 0)), results=((0, 0),), buckets=(4, 8), varies=True,
                    why="buckets 4, 8", floats=(3,), counters=((1, "calls"), (0, "betas.0")))


def test_decisions_are_read_as_they_were_kept_also_those_of_another_process(tmp_path):
    kept, other = Kept(tmp_path / "kept"), Kept(tmp_path / "kept")
    assert kept.first
    assert kept.get("a") is None
    kept.add("a", DECISION)
    other.add("b", Decision(eager=True))
    again = Kept(tmp_path / "kept")
    assert again.get("a") == DECISION
    assert again.get("b") == Decision(eager=True)
    assert again.from_first_rank("a") is None
    assert not [file for file in (tmp_path / "kept").iterdir() if file.name.startswith(".")]


def test_without_a_folder_decisions_last_as_long_as_the_process():
    kept = Kept(None)
    kept.add("a", DECISION)
    assert kept.get("a") == DECISION
    assert Kept(None).get("a") is None


def test_a_fingerprint_is_of_shapes_types_and_texts_and_not_of_values():
    tensors = {"w": torch.ones(2, 3), "n": 7}
    name = fingerprint(tensors, "Linear")
    assert fingerprint({"w": torch.zeros(2, 3), "n": 8}, "Linear") == name
    others = [fingerprint(tensors, "Conv"), fingerprint({"w": torch.ones(3, 2)}, "Linear"),
              fingerprint({"w": torch.ones(2, 3).double()}, "Linear"),
              fingerprint({"v": torch.ones(2, 3)}, "Linear")]
    assert len({name, *others}) == 5
