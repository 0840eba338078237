"""``harp sim``: the simulator's programs by another name, with their own exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harp.cli.sim import PROGRAMS
from tests.support import PATIENCE_S, ROOT

HARP = [sys.executable, "-m", "harp.cli.main", "sim"]
TOPOLOGY = "topologies/explicit-triangle.yaml"


def run(*words):
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)


def test_it_prints_what_the_module_prints():
    options = (TOPOLOGY, "--draws", "0", "--json", "-", "--quiet")
    ours, modules = run(*HARP, "run", *options), run(sys.executable, "-m", "sim.run", *options)
    assert ours.returncode == modules.returncode == 0
    assert ours.stdout == modules.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_has_its_help(program):
    done = run(*HARP, program, "--help")
    assert done.returncode == 0
    assert "Usage:" in done.stdout
    assert (ROOT / "sim" / f"{program}.py").exists()


@pytest.mark.parametrize(("words", "sentence"), [
    (("rum",), "No such program 'rum'. Did you mean 'run'?"),
    (("xyz",), "No such program 'xyz'. Allowed: run, compare, sweep,"),
    (("run", "/nosuch.yaml"), "/nosuch.yaml"), (("run", "--nosuch"), "--nosuch"),
    ((), "Missing argument 'PROGRAM'. Allowed: run, compare, sweep,")])
def test_a_mistake_is_a_sentence_and_status_2(words, sentence):
    done = run(*HARP, *words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
