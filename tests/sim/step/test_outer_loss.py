"""Published losses of DiLoCo, and tokens to the loss of averaging in each step."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from harp.lightcc.outer_policy import OuterPolicy
from sim.run import main
from sim.step.outer_loss import BETA, B, excess, times_the_tokens
from sim.workloads.models import get_model
from sim.workloads.transformer import Experts, Transformer, build
from tests.support.cluster_files import topology, write

ROOT = Path(__file__).resolve().parents[3]
DILOCO = OuterPolicy("diloco", 30)
GPT = Transformer(30, 2560, 40, 32768, head="tied")
"""Charles et al. 2025 call it 2.4 B; table 3."""


def test_a_loss_between_two_published_ones_lies_between_them():
    model = build(GPT, 2048)
    assert 1.3e9 < model.parameters < 2.5e9
    for islands, (small, large) in {2: (0.0016, -0.0013), 4: (0.0049, 0.0026),
                                    8: (0.0134, 0.0107)}.items():
        share = excess(DILOCO, model, islands)
        assert min(small, large) - 1e-4 <= share <= max(small, large) + 1e-4
    two, three, four = (excess(DILOCO, model, islands) for islands in (2, 3, 4))
    assert two < three < four


@pytest.mark.parametrize("policy", [
    OuterPolicy("diloco", 500), OuterPolicy("diloco", 30, bits=8), OuterPolicy("local-sgd", 30),
    OuterPolicy("sparseloco", 30)])
def test_other_methods_have_no_published_loss(policy):
    assert excess(policy, build(GPT, 2048), 4) is None


@pytest.mark.parametrize(("shape", "islands"), [
    (replace(GPT, layers=200), 8), (replace(GPT, layers=2, width=64, heads=2), 4), (GPT, 9),
    (GPT, 1), (replace(GPT, head="none"), 4), (replace(GPT, encoder=6), 4),
    (replace(GPT, experts=Experts(8, 2, 1024)), 4)])
def test_other_models_and_islands_have_none(shape, islands):
    assert excess(DILOCO, build(shape, 2048), islands) is None


def test_the_tokens_take_away_what_the_loss_is_higher():
    """Hoffmann's law at both numbers of tokens, with the loss of averaging from its power law."""
    model = build(GPT, 2048)
    tokens = 30 * model.parameters
    times = times_the_tokens(DILOCO, model, 8, tokens)
    averaged = 18.129 * model.parameters ** -0.0953  # their table 7
    gained = B / tokens**BETA - B / (times * tokens) ** BETA
    assert gained == pytest.approx(excess(DILOCO, model, 8) * averaged, rel=0.02)
    assert 1 < times < 1.5


def test_the_manuals_table_is_what_is_computed():
    text = (ROOT / "docs" / "use" / "outer.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) ([MB]) \| (.*) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) == 6
    for number, unit, *cells in rows:
        size = float(number) * {"M": 1e6, "B": 1e9}[unit]
        model = SimpleNamespace(shape=GPT, parameters=size)  # all that is read of it
        for islands, cell in zip((2, 4, 8), cells, strict=True):
            share = excess(DILOCO, model, islands)
            times = times_the_tokens(DILOCO, model, islands, 20 * size)
            assert cell.strip() == ("" if share is None else f"{share * 100:+.1f} %, {times:.2f}")


@pytest.mark.parametrize("each", [19, 321])
def test_beyond_what_was_trained_nothing_is_known(each):
    model = build(GPT, 2048)
    assert times_the_tokens(DILOCO, model, 4, each * model.parameters) is None


def test_a_loss_out_of_reach_is_never_reached(monkeypatch):
    monkeypatch.setattr("sim.step.outer_loss.B", 1.0)
    model = build(GPT, 2048)
    assert times_the_tokens(DILOCO, model, 8, 20 * model.parameters) == math.inf


@pytest.fixture
def file(tmp_path):
    data = topology(gpus=1, hosts=8, workload={"model": "gpt2", "batch": 1, "framework": "free"})
    first = data["scenarios"][0]
    data["scenarios"] = [first | {"name": name} | more for name, more in {
        "all": {}, "diloco": {"sync": {"every": 30}}, "few": {"sync": {"every": 30, "bits": 8}},
        "top-k": {"allreduce": "light", "light": {"LIGHT_TOPK_ALLREDUCE": 1}}}.items()]
    data["prices"] = {"hosts": {"h": 36.0}, "tokens": 5e9}
    return write(tmp_path, data)


def test_a_row_says_its_time_to_the_same_loss(file):
    done = CliRunner().invoke(main, [str(file), "--draws", "0", "--json", "-"])
    rows = {row["name"]: row for row in json.loads(done.stdout)["scenarios"]}
    times = times_the_tokens(DILOCO, get_model("gpt2"), 8, 5e9)
    assert {name: row["cost"]["same_loss_times"] for name, row in rows.items()} == {
        "all": 1.0, "diloco": pytest.approx(times, rel=1e-4), "few": None, "top-k": None}
    assert "are 2.8 % above" in " ".join(rows["diloco"]["notes"])
    assert "published" in " ".join(rows["few"]["notes"])
    assert "days to" in done.stderr
    assert "same loss" in done.stderr


def test_csv_and_page_give_the_time_to_the_same_loss_with_its_interval(file, tmp_path):
    """P10 and P90 are as far from it as those of the whole training are from that."""
    page = tmp_path / "page.html"
    file.write_text(file.read_text("utf-8").replace("stack: ideal", "stack: kernel-tcp"), "utf-8")
    arguments = [str(file), "--scenario", "diloco", "--scenario", "few", "--draws", "6",
                 "--html", str(page)]
    done = CliRunner().invoke(main, [*arguments, "--csv", "-"])
    diloco, few = csv.DictReader(io.StringIO(done.stdout))
    times = times_the_tokens(DILOCO, get_model("gpt2"), 8, 5e9)
    days, low, high = (float(diloco[f"{name}same_loss_days"]) for name in ("", "p10_", "p90_"))
    samples = 5e9 / get_model("gpt2").tokens
    assert low < days < high
    for found, rate in ((days, "images_per_s"), (low, "p90_images_per_s"),
                        (high, "p10_images_per_s")):
        assert found == pytest.approx(times * samples / float(diloco[rate]) / 86400, rel=1e-6)
    assert [few[f"{name}same_loss_days"] for name in ("", "p10_", "p90_")] == ["", "", ""]
    rows = [json.loads(CliRunner().invoke(main, [*arguments[:-2], "--json", "-"]).stdout)
            ["scenarios"][number]["cost"] for number in (0, 1)]
    assert [rows[0]["same_loss_days"], *rows[0]["same_loss_days_interval"]] == [days, low, high]
    assert [rows[1][f"same_loss_{name}"] for name in ("days", "days_interval")] == [None, None]
    assert all(name in page.read_text("utf-8") for name in ("days to same loss", "days P90"))


def test_without_a_published_loss_the_table_has_no_column(file):
    done = CliRunner().invoke(main, [str(file), "--draws", "0", "--scenario", "all",
                                     "--scenario", "few"])
    assert done.exit_code == 0
    assert "same loss" not in done.stdout
