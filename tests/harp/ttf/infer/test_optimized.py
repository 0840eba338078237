"""One face for inference: every engine's answers are eager's, or it has a row that says why not."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from harp.ttf import infer  # noqa: E402
from harp.ttf.embedding import DynamicEmbedding  # noqa: E402
from harp.ttf.infer import engines, optimized  # noqa: E402
from tests.support.levels import long, long_except  # noqa: E402
from tests.support.mounts import mounts  # noqa: E402

OTHERS = ("onnxruntime cpu", "openvino cpu")


class Heads(nn.Module):
    """Two outputs by name, one of them integers, from ids and features."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.ids, self.net = nn.Embedding(50, 8), nn.Linear(12, 4)

    def forward(self, ids, features):
        scores = self.net(torch.cat([self.ids(ids).mean(1), features], -1))
        return {"scores": torch.softmax(scores, -1), "best": scores.argmax(-1)}


def example(batch=6):
    random = torch.Generator().manual_seed(1)
    return (torch.randint(0, 50, (batch, 4), generator=random)[:, :3],  # a view
            torch.randn(batch, 4, generator=random))


class Made:
    """An engine of a test."""

    def __init__(self, name, run):
        self.name, self._run = name, run

    def build(self, source):
        return self._run

    def files(self):
        return ()


def only(monkeypatch, *more):
    """Leave torch's compiler out, which takes half a minute, and add engines."""
    kept = [engine for engine in engines.installed() if engine.name in ("eager", *OTHERS)]
    monkeypatch.setattr(optimized, "installed", lambda: [*kept, *more])


def same(found, right):
    assert list(found) == list(right)
    torch.testing.assert_close(found["scores"], right["scores"], rtol=1e-3, atol=1e-4)
    assert torch.equal(found["best"], right["best"])


def test_every_installed_engine_answers_as_eager_does(monkeypatch):
    only(monkeypatch)
    model = Heads().eval()
    fast = infer.optimize(model, example(), budget="1s")
    assert [row.engine for row in fast.rows] == ["eager", *OTHERS]
    assert all(row.why_not or max(row.off) <= 1e-3 for row in fast.rows)
    assert not [row.why_not for row in fast.rows if "failed" in row.why_not]
    same(fast(*example()), model(*example()))


@pytest.mark.parametrize("name", long_except(OTHERS, "onnxruntime cpu"))
def test_an_engine_serves_batches_of_all_sizes_and_loads_again(monkeypatch, tmp_path, name):
    kept = [engine for engine in engines.installed() if engine.name in ("eager", name)]
    monkeypatch.setattr(optimized, "installed", lambda: kept)
    monkeypatch.setattr(optimized, "_total", lambda row: row.engine == "eager")
    model = Heads().eval()
    fast = infer.optimize(model, example(), budget="1s", batch_sizes=(2, 9),
                          save=tmp_path / "served")
    assert fast.engine == name
    assert set(fast.rows[0].latency_s) == {2, 9}
    monkeypatch.setattr(optimized, "installed", None)  # nothing is tried again
    again = infer.load(tmp_path / "served")
    assert again.engine == name
    assert again.table() == fast.table()
    for batch in (2, 5, 9):
        same(again(*example(batch)), model(*example(batch)))


DROPPED = """
import signal, sys, threading
from harp.ttf import infer
made = [infer.load(sys.argv[1])]
thread = threading.Thread(target=made.clear)
thread.start()
thread.join()
signal.signal(signal.SIGUSR1, lambda *_: print("heard"))
signal.raise_signal(signal.SIGUSR1)
"""


@long
@pytest.mark.parametrize("name", OTHERS)
def test_a_process_hears_signals_after_a_thread_has_dropped_an_engine(monkeypatch, tmp_path, name):
    kept = [engine for engine in engines.installed() if engine.name in ("eager", name)]
    monkeypatch.setattr(optimized, "installed", lambda: kept)
    monkeypatch.setattr(optimized, "_total", lambda row: row.engine == "eager")
    infer.optimize(nn.Linear(4, 2), torch.randn(3, 4), budget="1s", save=tmp_path / "served")
    done = subprocess.run([sys.executable, "-c", DROPPED, tmp_path / "served"], check=False,
                          capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr


def test_eager_is_kept_as_a_program(monkeypatch, tmp_path):
    monkeypatch.setattr(optimized, "installed", lambda: [engines.Eager()])
    model = Heads().eval()
    infer.optimize(model, example(), budget=1, save=tmp_path / "served")
    same(infer.load(tmp_path / "served")(*example()), model(*example()))


def test_an_engine_that_is_wrong_or_fails_is_a_row_with_its_reason(monkeypatch):
    model = nn.Linear(4, 2).eval()

    def fails(_):
        raise RuntimeError("no kernel for this\nand a long trace")

    def advises(_):
        raise OSError("This is step 2 of 3. Next steps:") from KeyError("aten.fancy")

    def wrong(tensors):
        with torch.inference_mode():
            return [model(tensors[0]) * 1.01]

    def shorter(tensors):
        with torch.inference_mode():
            return [model(tensors[0])[:1]]

    monkeypatch.setattr(optimized, "installed", lambda: [
        engines.Eager(), Made("a", fails), Made("b", wrong), Made("c", shorter),
        Made("d", advises)])
    fast = infer.optimize(model, torch.randn(3, 4), budget="1s")
    reasons = {row.engine: row.why_not for row in fast.rows}
    assert reasons == {"eager": "", "a": "failed: RuntimeError: no kernel for this",
                       "b": "wrong: output 0 is off by 1.0e-02; allowed is 0.001",
                       "c": "wrong: outputs have other shapes than eager's",
                       "d": "failed: KeyError: 'aten.fancy'"}
    assert all(reason in fast.table() for reason in reasons.values())
    assert fast.engine == "eager"
    loose = infer.optimize(model, torch.randn(3, 4), budget="1s", tolerance=[0.1])
    assert not next(row for row in loose.rows if row.engine == "b").why_not


def test_the_budget_ends_trials_but_not_before_eager(monkeypatch):
    monkeypatch.setattr(optimized, "installed", lambda: [engines.Eager(), engines.OpenVino()])
    fast = infer.optimize(nn.Linear(4, 2), torch.randn(3, 4), budget=1e-9)
    assert [row.why_not for row in fast.rows] == ["", "not tried: the budget was spent"]


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


def test_rows_of_dynamic_embeddings_are_in_no_artifact(monkeypatch, tmp_path):
    monkeypatch.setattr(optimized, "installed", lambda: [engines.Eager()])
    model, ids = nn.Sequential(DynamicEmbedding(4), nn.Linear(4, 1)), torch.arange(3)
    assert torch.equal(infer.optimize(model, ids, budget="1s")(ids), model(ids))
    with pytest.raises(ValueError, match="save: no artifact holds the rows of dynamic"):
        infer.optimize(model, ids, budget="1s", save=tmp_path / "served")
    assert not list(tmp_path.iterdir())


def test_an_artifact_takes_the_place_of_no_other_files(monkeypatch, tmp_path):
    monkeypatch.setattr(optimized, "installed", lambda: [engines.Eager()])
    own = tmp_path / "own.txt"
    own.write_text("kept")
    for place in (tmp_path, own):
        with pytest.raises(ValueError, match="is there and no artifact of harp"):
            infer.optimize(nn.Linear(4, 2), torch.randn(3, 4), budget="1s", save=place)
    assert own.read_text() == "kept"
    for _ in range(2):
        infer.optimize(nn.Linear(4, 2), torch.randn(3, 4), budget="1s", save=tmp_path / "served")


FULL_DISK = """
import sys
from pathlib import Path
import torch
from torch import nn
from harp.ttf import infer
from harp.ttf.infer import engines, optimized
optimized.installed = lambda: [engines.Eager()]
place, example = Path(sys.argv[1]), torch.randn(3, 512)
try:
    infer.optimize(nn.Linear(512, 2), example, budget="1s", save=place)
except ValueError as error:
    print(error)
infer.optimize(nn.Linear(512, 2), example, budget="1s", save=place / "served")
assert [file.name for file in place.iterdir()] == ["served"]
for name in ("served", "other"):
    try:
        infer.optimize(nn.Linear(512, 512), example, budget="1s", save=place / name)
    except OSError as error:
        print(error)
assert infer.load(place / "served")(example).shape == (3, 2)
assert [file.name for file in place.iterdir()] == ["served"]
"""


@long
@mounts
def test_a_full_disk_is_named_with_what_was_measured_and_leaves_what_was_there(tmp_path):
    mounted = 'mount -t tmpfs -o size=256k none "$2" && exec "$0" -c "$1" "$2"'
    done = subprocess.run(["unshare", "--mount", "sh", "-c", mounted, sys.executable, FULL_DISK,
                           str(tmp_path)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    refused, *said = done.stdout.splitlines()
    assert refused == (f"save is {tmp_path}, where a file system is mounted; allowed is a folder "
                       "in it")
    for name, *lines in zip(("served", "other"), *[iter(said)] * 2, strict=True):
        assert lines[0] == (f"the artifact of eager cannot be written to {tmp_path / name}: No "
                            "space left on device; what was measured is")
        assert re.match(r"\* eager +batch 3 +[0-9.]+ ms ", lines[1])


def test_a_model_that_no_engine_keeps_is_an_error_with_what_was_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(optimized, "installed", lambda: [engines.Eager()])

    class Branch(nn.Module):
        def forward(self, rows):
            return rows + 1 if rows.sum() > 0 else rows - 1

    with pytest.raises(RuntimeError, match=r"cannot be written to .*/served: .*\n\* eager "):
        infer.optimize(Branch(), torch.ones(3), budget="1s", save=tmp_path / "served")
    assert not list(tmp_path.iterdir())


def test_a_model_keeps_its_mode():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimized, "installed", lambda: [engines.Eager()])
        infer.optimize(model, torch.randn(2, 4), budget="1s")
    assert model.training


@pytest.mark.parametrize(("one", "other", "off"), [
    ([1.0, 2.0], [1.0, 2.0], 0.0), ([1.0, 2.2], [1.0, 2.0], 0.1),
    ([1.0, float("nan")], [1.0, float("nan")], 0.0),
    ([1.0, float("nan")], [1.0, 2.0], float("inf")),
    ([float("inf"), 1.0], [float("-inf"), 1.0], float("inf")), ([0.5, 0.0], [0.0, 0.0], 0.5)])
def test_deviation_is_by_the_largest_value(one, other, off):
    assert optimized.deviation(torch.tensor(one), torch.tensor(other)) == pytest.approx(off)


@pytest.mark.parametrize(("how", "sentence"), [
    ({"budget": "soon"}, "budget is 'soon'; allowed are durations"),
    ({"budget": "0s"}, "budget is '0s'"), ({"batch_sizes": (0,)}, "the least batch is 1"),
    ({"budget": -1}, "budget is -1; allowed"), ({"tolerance": -1}, "tolerance is -1; allowed is a"),
    ({"tolerance": [1.0, 1.0], "budget": "1s"}, r"tolerance is \[1.0, 1.0\]; .* one "
     "for each output, of which the model has 1$")])
def test_a_mistake_is_one_sentence(how, sentence):
    with pytest.raises(ValueError, match=sentence):
        infer.optimize(nn.Linear(4, 2), torch.randn(3, 4), **how)


def test_an_example_without_a_tensor_is_one_sentence():
    with pytest.raises(ValueError, match="the example has no tensor"):
        infer.optimize(nn.Linear(4, 2), (1, 2))


@pytest.mark.parametrize("text", [None, "{}", "[", json.dumps({"engine": "abacus", "rows": [],
                                                               "result": "", "tolerance": 1})])
def test_a_foreign_artifact_is_one_sentence(tmp_path, text):
    if text is not None:
        (tmp_path / optimized.MANIFEST).write_text(text)
    with pytest.raises(ValueError, match="is no artifact of harp"):
        infer.load(tmp_path)


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


@long
def test_torch_compile_answers_as_eager_does_and_loads_again(tmp_path, monkeypatch):
    monkeypatch.setattr(optimized, "installed", lambda: [engines.Eager(), engines.Inductor()])
    monkeypatch.setattr(optimized, "_total", lambda row: row.engine == "eager")
    model = Heads().eval()
    fast = infer.optimize(model, example(), budget="200s", save=tmp_path / "served")
    assert fast.engine == "torch.compile"
    for layout in (lambda each: each, torch.Tensor.contiguous, lambda each: each.t().clone().t()):
        given = tuple(map(layout, example()))
        same(infer.load(tmp_path / "served")(*given), model(*given))
