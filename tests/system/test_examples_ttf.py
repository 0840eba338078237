"""The examples of examples/ttf, by the one command that each names."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support import PATIENCE_S, ROOT
from tests.support.levels import long
from tests.support.torch_ranks import run_alone

EXAMPLES = ROOT / "examples" / "ttf"


def run(name, *arguments):
    return subprocess.run([sys.executable, EXAMPLES / name, *arguments], text=True,
                          capture_output=True, check=False, timeout=PATIENCE_S)


@long
def test_fp16_that_follows_the_loss_ends_where_full_precision_does(tmp_path):
    done = run_alone(EXAMPLES / "fp16_loss.py", "--steps", "160", "--plot",
                     str(tmp_path / "loss.png"))
    assert done.returncode == 0, done.stderr
    losses = dict(re.findall(r"^(\w+) +loss (\S+?),?(?: |$)", done.stdout, re.MULTILINE))
    assert float(losses["controller"]) <= 1.01 * float(losses["full"])
    assert losses["autocast"] == "nan"
    assert "module attention overflowed 2 times and stays in full precision" in done.stderr
    assert (tmp_path / "loss.png").stat().st_size > 1000


@long
def test_many_lengths_are_one_graph(tmp_path):
    done = run("variable_length.py", "--steps", "200", "--backend", "aot_eager", "--cache",
               str(tmp_path / "kept"))
    assert done.returncode == 0, done.stderr
    first, last = map(float, re.findall(r"loss ([\d.]+), at the end ([\d.]+)", done.stdout)[0])
    assert last < first / 2
    assert re.search(r"200 steps of 4\d lengths", done.stdout)
    assert "compiled again" not in done.stderr
    assert "stays eager" not in done.stderr
    again = run("variable_length.py", "--steps", "20", "--backend", "aot_eager", "--cache",
                str(tmp_path / "kept"))
    assert again.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", ["fp16_loss.py", "variable_length.py"])
def test_a_number_of_steps_that_makes_no_sense_is_one_sentence(name):
    done = run_alone(EXAMPLES / name, "--steps", "0")
    assert done.returncode == 2
    assert "--steps is 0; at least" in done.stderr
