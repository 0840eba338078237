"""Engines: the answers of each are eager's, also from a folder."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from harp.ttf import infer  # noqa: E402
from harp.ttf.infer import engines, optimized  # noqa: E402
from tests.support.levels import long, long_except  # noqa: E402

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
