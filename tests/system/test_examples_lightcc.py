"""The examples of examples/lightcc, each by the one command that it names."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest

from lab.namespace import why_unusable
from tests.support import ROOT
from tests.support.levels import long

pytest.importorskip("torch")

from tests.harp.lightcc.horovod.test_torch_surface import CALLS, VALUES

EXAMPLES = ROOT / "examples" / "lightcc"
PATIENCE_S = 600


def outcome(script, *arguments, **variables):
    ended = subprocess.run(
        [sys.executable, "-m", "harp.cli.main", "run", "-np", "2", sys.executable, "-W",
         "ignore", EXAMPLES / script, *arguments], text=True, capture_output=True, check=False,
        timeout=PATIENCE_S, env={**os.environ, **variables})
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-1]


@long
@pytest.mark.parametrize(("script", "arguments", "variables"), [
    ("horovod_mnist.py", ["--fp16-allreduce"], {}),
    ("ddp.py", [], {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": "1000"}),
    ("fsdp2.py", [], {})])
def test_an_example_learns(script, arguments, variables):
    said = outcome(script, *arguments, **variables)
    accuracy = re.search(r"accuracy ([\d.]+) %", said)
    assert accuracy, said
    assert float(accuracy[1]) > 90


@long
def test_diloco_has_equal_peers():
    ended = subprocess.run(
        [sys.executable, "-m", "harp.cli.main", "run", "-np", "2", sys.executable, "-W", "ignore",
         EXAMPLES / "diloco.py"], text=True, capture_output=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    check_equal_peers(ended.stdout, r"\(0, 1\)")


@pytest.mark.long
@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_diloco_over_two_namespaces_survives_a_peer_that_is_killed():
    ended = subprocess.run([sys.executable, EXAMPLES / "diloco.py", "--namespaces"], text=True,
                           capture_output=True, check=False, timeout=PATIENCE_S, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert "was killed after round 10" in ended.stdout
    check_equal_peers(ended.stdout, r"\([01], 2\)")


def check_equal_peers(said, last):
    assert len(re.findall(f"round 60: peers {last}", said)) == 2, said
    ends = re.findall(r"accuracy ([\d.]+) %, parameters (\w+)", said)
    assert len(ends) == 2
    assert ends[0] == ends[1]
    assert float(ends[0][0]) > 90


@long
def test_the_synthetic_benchmark_counts_pictures():
    said = outcome("horovod_synthetic_benchmark.py", "--width", "64", "--num-iters", "1")
    assert re.fullmatch(r"\[0\] total on 2 ranks: [\d.]+ pictures/s", said)


@pytest.mark.parametrize("script", ["horovod_mnist.py", "horovod_synthetic_benchmark.py"])
def test_a_script_for_horovod_has_one_import_line_of_ours_and_asks_for_what_horovod_has(script):
    tree = ast.parse((EXAMPLES / script).read_text())
    code = ast.unparse(tree.body[1:])  # without the docstring, which names the command
    assert [line for line in code.splitlines() if "harp" in line] == [
        "import harp.lightcc.horovod.torch as hvd"]
    asked = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
             and isinstance(node.value, ast.Name) and node.value.id == "hvd"}
    assert asked
    assert asked <= {*CALLS, *VALUES}


def test_every_example_names_its_command():
    for script in EXAMPLES.glob("*.py"):
        if script.name != "generated_digits.py":
            assert f"harp run -np 2 python examples/lightcc/{script.name}" in script.read_text()
