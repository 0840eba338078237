"""``python -m sim.calibrate``: its answers and its options."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sim.calibrate import main
from tests.sim.answer.test_fit import small
from tests.sim.calibration.test_measurements import BENCH
from tests.support.calibrate_runs import GOOD, ROOT, TACO, refused, run, save

if TYPE_CHECKING:
    from pathlib import Path


def test_command_prints_the_fit_and_succeeds_where_nothing_is_stale() -> None:
    result = CliRunner().invoke(main, [str(TACO)])
    assert result.exit_code == 0, result.output
    line = next(x for x in result.output.splitlines() if x.startswith("taco-tcp.cost_per_byte"))
    assert "Horovod+TCP, 16 GPUs" in line
    assert line.count("ns") == 2


def test_command_fails_in_one_sentence_where_a_value_is_stale(tmp_path: Path) -> None:
    path = small(tmp_path)
    result = CliRunner().invoke(main, [str(path), "--json"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: Stale: kernel-tcp.cost_per_byte is more than")
    document = json.loads(result.stdout)
    assert document["stale"] is True
    assert document["parameters"][0]["name"] == "kernel-tcp.cost_per_byte"


@pytest.mark.parametrize(("arguments", "says"), [
    (["--stack", "hrap", "--from", "GOOD"], "did you mean 'harp'"),
    (["--stack", "harp", "--from", "missing.json"], "cannot be read"),
    (["--stack", "harp", "--from", "."], "is a directory"),
    (["--stack", "harp", "--from", "GOOD", "--topology", "missing.yaml"], "cannot be read"),
    (["--stack", "harp", "--from", "GOOD", "-o", "GOOD"], "already the input file"),
    (["--stack", "harp", "--from", "GOOD", "-o", "out.txt"], "must end in one of"),
    (["--stack", "harp", "--from", "GOOD", "-o", "none/out.yaml"], "no directory"),
    (["--stack", "harp", "--from", "GOOD", "-o", "-", "--json"], "already the target of -o"),
    (["missing.yaml"], "cannot be read"),
])
def test_wrong_options_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                   arguments: list[str], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    good = save(tmp_path, GOOD, "good.yaml")
    sentence = refused(run(*[str(good) if word == "GOOD" else word for word in arguments]))
    assert says in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["good.yaml"]


@pytest.mark.parametrize("arguments", [
    [], ["--stack", "harp"], ["--from", "x"], ["t.yaml", "--stack", "harp", "--from", "x"],
    ["t.yaml", "-o", "x.yaml"], ["t.yaml", "--topology", "x.yaml"]])
def test_options_that_do_not_go_together_are_refused(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "--stack and --from" in result.stderr


def documented(section: str) -> set[str]:
    """The keys of the last table of a section."""
    text = (ROOT / "docs" / "use" / "calibrate.md").read_text(encoding="utf-8")
    table = text.split(f"## {section}\n", 1)[1].split("\n## ")[0].split("`--json` prints:")[1]
    return {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}


def keys(document: dict[str, Any]) -> set[str]:
    return set(document) | {f"parameters[].{key}" for key in document["parameters"][0]}


def test_docs_list_exactly_the_keys_of_json(tmp_path: Path) -> None:
    fitted = json.loads(run(TACO, "--json").stdout)
    assert documented("From published rows") == keys(fitted)
    measured = json.loads(run("--stack", "harp", "--from", save(tmp_path, BENCH), "--json").stdout)
    assert documented("From measurements") == keys(measured)
