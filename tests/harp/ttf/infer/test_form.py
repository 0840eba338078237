"""The form of calls and results: what an engine was made for, and a sentence for the rest."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from harp.ttf import infer  # noqa: E402
from harp.ttf.infer import engines, optimized  # noqa: E402
from tests.harp.ttf.infer.test_engines import OTHERS  # noqa: E402
from tests.support.levels import long, long_except  # noqa: E402


class Tower(nn.Module):
    """Arguments that may not take one another's place, and results with a None."""

    def forward(self, x, features, scale=1.0, mask=None):
        assert mask is None
        return {"sum": x - 2 * features["user"] + 3 * features["item"] * scale, "state": (None, x)}


def told_apart():
    x, user, item = torch.randn(3, 2, 4)
    return {"x": x, "features": {"user": user, "item": item}, "scale": 2.0, "mask": None}


@pytest.mark.parametrize("saved", long_except([False, True], True))
@pytest.mark.parametrize("name", long_except(
    ["eager", *OTHERS, "torch.compile"], "eager", "onnxruntime cpu"))
def test_arguments_come_in_any_order_and_none_is_mistaken_for_another(monkeypatch, tmp_path, saved,
                                                                      name):
    kept = [engine for engine in engines.installed() if engine.name in ("eager", name)]
    monkeypatch.setattr(optimized, "installed", lambda: kept)
    monkeypatch.setattr(optimized, "_total", lambda row: row.engine == "eager")
    fast = infer.optimize(Tower(), told_apart(), budget="100s", save=tmp_path / "served",
                          batch_sizes=(2, 5))
    assert fast.engine == name
    if saved:
        fast = infer.load(tmp_path / "served")
    given = told_apart()
    expected = Tower()(**given)
    other = {name: given[name] for name in ("mask", "scale", "features", "x")}
    other["features"] = {name: given["features"][name] for name in ("item", "user")}
    found = fast(**other)
    torch.testing.assert_close(found["sum"], expected["sum"])
    assert found["state"][0] is None
    assert torch.equal(found["state"][1], given["x"])


@pytest.mark.parametrize(("change", "sentence"), [
    ({"scale": 3.0}, r"argument \['scale'\] is 3.0; the engine was made with 2.0"),
    ({"mask": torch.ones(2)}, r"argument \['mask'\] is tensor.*; the engine was made with None"),
    ({"x": torch.randn(3, 4)}, r"argument \['x'\] is torch.float32 \[3, 4\]; the engine was made "
                               r"for torch.float32 \[2, 4\]"),
    ({"x": torch.ones(2, 4).long()}, r"argument \['x'\] is torch.int64 \[2, 4\]; the engine was"),
    ({"more": 1}, "the call has 0 arguments by place and x, features, scale, mask, more by keyword;"
                  " the example has 0 arguments by place and x, features, scale, mask by keyword"),
    ({"features": {}}, "an argument has another form than in the example")])
def test_a_call_that_an_engine_was_not_made_for_is_refused(monkeypatch, change, sentence):
    monkeypatch.setattr(optimized, "installed", lambda: [engines.Eager()])
    fast = infer.optimize(Tower(), told_apart(), budget="1s")
    with pytest.raises(ValueError, match=sentence):
        fast(**{**told_apart(), **change})


def test_a_result_that_is_no_tensor_is_refused(monkeypatch):
    class Counting(nn.Module):
        def forward(self, x):
            return {"mean": x.mean(), "n": float(x.sum())}

    monkeypatch.setattr(optimized, "installed", lambda: [engines.Eager()])
    with pytest.raises(ValueError, match=r"the model gives \['n'\] of float; allowed are tensors"):
        infer.optimize(Counting(), torch.randn(2), budget="1s")


CAUSAL = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
from harp.ttf import infer
from harp.ttf.infer import engines, optimized
kept = [engine for engine in engines.installed() if engine.name in ("eager", sys.argv[2])]
optimized.installed = lambda: kept
optimized._total = lambda row: row.engine != sys.argv[2]
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    num_hidden_layers=2, num_attention_heads=2, hidden_size=16, intermediate_size=16,
    vocab_size=50)).eval()
ids = torch.randint(0, 50, (2, 8))
example = {"input_ids": ids[:, 6:7], "cache": model(ids[:, :6]).cache}
for name, given in (("fill", {"input_ids": ids[:, :6]}), ("step", example)):
    found = infer.optimize(model, given, budget="200s", batch_sizes=(2, 4), save=sys.argv[1] + name)
    assert found.engine == sys.argv[2], found.table()
assert example["cache"].get_seq_length() == 6  # a trial adds nothing to what it is given
torch.save((ids, model(ids[:, :7]).logits[:, -1:]), sys.argv[1] + "right")
"""

SERVES_CAUSAL = """
import sys, torch
from harp.ttf import infer
fill, step = (infer.load(sys.argv[1] + name) for name in ("fill", "step"))
ids, right = torch.load(sys.argv[1] + "right")
filled = fill(input_ids=ids[:, :6])
found = step(input_ids=ids[:, 6:7], cache=filled.cache)
assert (type(found).__name__, found.cache.get_seq_length()) == ("CausalLMOutputWithPast", 7)
assert filled.cache.get_seq_length() == 6
torch.testing.assert_close(found.logits, right, rtol=1e-3, atol=1e-4)
"""


@long
def test_a_causal_model_of_transformers_is_served_with_its_cache(tmp_path):
    for program in (CAUSAL, SERVES_CAUSAL):
        done = subprocess.run([sys.executable, "-c", program, f"{tmp_path}/", OTHERS[0]],
                              check=False, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr


ANSWER = """
from torch.utils import _pytree as pytree
class Answer:
    def __init__(self, score):
        self.score = score
pytree.register_pytree_node(
    Answer, lambda answer: ([answer.score], None), lambda values, _: Answer(*values),
    serialized_type_name="own_answers.Answer",
    flatten_with_keys_fn=lambda answer: ([(pytree.GetAttrKey("score"), answer.score)], None))
"""


def test_the_module_of_an_answer_is_imported_when_an_artifact_is_loaded(monkeypatch, tmp_path):
    monkeypatch.setattr(optimized, "installed", lambda: [engines.Eager()])
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_answers.py").write_text(ANSWER)
    own = importlib.import_module("own_answers")

    class Scoring(nn.Module):
        def forward(self, x):
            return own.Answer(x.sum())

    infer.optimize(Scoring(), torch.ones(3), budget="1s", save=tmp_path / "served")
    for there, said in ((True, "3.0\n"), (False, "torch does not know a class in it: "
                                                 "Deserializing own_answers.Answer in pytree is "
                                                 "not registered.\n")):
        if not there:
            (tmp_path / "own_answers.py").unlink()
        done = subprocess.run([sys.executable, "-c", SERVES_ANSWER, tmp_path / "served"],
                              check=False, capture_output=True, text=True, timeout=300,
                              env={**os.environ, "PYTHONPATH": str(tmp_path)})
        assert done.stdout.endswith(said), done.stderr


SERVES_ANSWER = """
import sys, torch
from harp.ttf import infer
try:
    print(infer.load(sys.argv[1])(torch.ones(3)).score.item())
except ValueError as error:
    print(error)
"""
