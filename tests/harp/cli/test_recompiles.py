"""``harp recompiles`` on a program whose recompiles are known, and its mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.support import PATIENCE_S
from tests.support.levels import long

PROGRAM = """
import torch

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls

def chosen(x, mode):
    return x + len(mode)

def sized(x):
    return x + 1

scaled, chosen, sized = (torch.compile(each, backend="eager")
                         for each in (Scaled(), chosen, sized))
for call in range(12):
    scaled(torch.ones(3))
for call in range(2):
    chosen(torch.ones(3), "m" * call)
for size in (3, 5, 7):
    sized(torch.ones(size))
print("done")
"""


def harp(*words, cwd):
    return subprocess.run([sys.executable, "-m", "harp.cli.main", "recompiles", *words], cwd=cwd,
                          text=True, capture_output=True, check=False, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("program")
    (folder / "train.py").write_text(PROGRAM)
    return harp("--json", "--", sys.executable, "train.py", cwd=folder)


def of(ran, function):
    return [each for each in json.loads(ran.stdout) if each["function"] == function]


@long
def test_each_recompile_has_its_guard_line_seconds_and_remedy(ran):
    assert ran.returncode == 0
    first, *again = of(ran, "chosen")
    assert first["guard"] == ""
    assert len(again) == 1
    assert again[0]["guard"] == "mode == ''"
    assert Path(again[0]["at"]).name == "train.py:14"
    assert again[0]["code"].startswith("return x + len(mode)")
    assert again[0]["seconds"] > 0
    assert again[0]["remedy"].startswith("compile a function for each mode")


@long
def test_a_size_recompiles_once_and_is_dynamic_then(ran):
    _, again = of(ran, "sized")
    assert "expected 3, actual 5" in again["guard"]
    assert "mark dimension 0" in again["remedy"]


@long
def test_the_recompile_limit_is_never_silent(ran):
    calls = of(ran, "forward")
    assert calls[-1]["gave_up"] == "Dynamo recompile limit exceeded"
    assert all("counter in a tensor" in call["remedy"] for call in calls[1:-1])


@long
def test_the_table_names_what_met_the_recompile_limit(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    table = harp("--", sys.executable, "train.py", cwd=tmp_path)
    assert "forward (train.py:9) met the recompile limit" in table.stdout
    assert "done" not in table.stdout
    assert "done" in table.stderr


def test_the_status_is_the_commands(tmp_path):
    done = harp("--", sys.executable, "-c", "raise SystemExit(3)", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout == "0 first compilations, 0 recompilations, 0.0 of 0.0 s\n"


def test_a_command_that_is_not_there_is_one_sentence(tmp_path):
    done = harp("--", "no-such-program", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == ("error: 'no-such-program' cannot be started: no such file or "
                           "directory\n")
