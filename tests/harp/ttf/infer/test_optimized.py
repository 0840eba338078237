"""One face for inference: every engine's answers are eager's, or it has a row that says why not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from harp.ttf import infer  # noqa: E402
from harp.ttf.infer import engines, optimized  # noqa: E402
from tests.support.levels import long  # noqa: E402

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
    return (torch.randint(0, 50, (batch, 3), generator=random),
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


@pytest.mark.parametrize("name", OTHERS)
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

    def wrong(tensors):
        with torch.inference_mode():
            return [model(tensors[0]) * 1.01]

    def shorter(tensors):
        with torch.inference_mode():
            return [model(tensors[0])[:1]]

    monkeypatch.setattr(optimized, "installed", lambda: [
        engines.Eager(), Made("a", fails), Made("b", wrong), Made("c", shorter)])
    fast = infer.optimize(model, torch.randn(3, 4), budget="1s")
    reasons = {row.engine: row.why_not for row in fast.rows}
    assert reasons == {"eager": "", "a": "failed: RuntimeError: no kernel for this",
                       "b": "wrong: output 0 is off by 1.0e-02; allowed is 0.001",
                       "c": "wrong: outputs have other shapes than eager's"}
    assert all(reason in fast.table() for reason in reasons.values())
    assert fast.engine == "eager"
    loose = infer.optimize(model, torch.randn(3, 4), budget="1s", tolerance=[0.1])
    assert not next(row for row in loose.rows if row.engine == "b").why_not


def test_the_budget_ends_trials_but_not_before_eager(monkeypatch):
    monkeypatch.setattr(optimized, "installed", lambda: [engines.Eager(), engines.OpenVino()])
    fast = infer.optimize(nn.Linear(4, 2), torch.randn(3, 4), budget=1e-9)
    assert [row.why_not for row in fast.rows] == ["", "not tried: the budget was spent"]


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
    ({"tolerance": [1.0, 1.0], "budget": "1s"}, "tolerance has 2 values; the model has 1")])
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


@long
def test_torch_compile_answers_as_eager_does_and_loads_again(tmp_path, monkeypatch):
    monkeypatch.setattr(optimized, "installed", lambda: [engines.Eager(), engines.Inductor()])
    monkeypatch.setattr(optimized, "_total", lambda row: row.engine == "eager")
    model = Heads().eval()
    fast = infer.optimize(model, example(), budget="200s", save=tmp_path / "served")
    assert fast.engine == "torch.compile"
    same(infer.load(tmp_path / "served")(*example()), model(*example()))
