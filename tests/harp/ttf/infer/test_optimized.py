"""One face for inference: the fastest right engine, or a row that says why not."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from harp.ttf import infer  # noqa: E402
from harp.ttf.embedding import DynamicEmbedding  # noqa: E402
from harp.ttf.infer import engines, optimized  # noqa: E402
from tests.support.levels import long  # noqa: E402
from tests.support.mounts import mounts  # noqa: E402


class Made:
    """An engine of a test."""

    def __init__(self, name, run):
        self.name, self._run = name, run

    def build(self, source):
        return self._run

    def files(self):
        return ()


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
