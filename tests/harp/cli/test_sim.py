"""``harp sim``: the simulator's programs by another name, with their own exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harp.cli.sim import PROGRAMS
from tests.support import PATIENCE_S, ROOT
from tests.support.levels import each_once, long

HARP = [sys.executable, "-m", "harp.cli.main", "sim"]
TOPOLOGY = "topologies/explicit-triangle.yaml"


def run(*words):
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)


@long
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


def completed(shell: str, words: str) -> list[str]:
    """What a shell's script gets for the last of some words, as click's scripts ask for it."""
    line = words.split(" ")
    asked = {"bash": str(len(line) - 1), "zsh": str(len(line) - 1), "fish": line[-1]}[shell]
    said = subprocess.run([sys.executable, "-m", "harp.cli.main"], capture_output=True, text=True,
                          check=False, env={**os.environ, "_HARP_COMPLETE": f"{shell}_complete",
                                            "COMP_WORDS": words, "COMP_CWORD": asked}).stdout
    return [item for item in re.split(r"[,\n\t]", said) if item]


@pytest.mark.parametrize(("example", "shell"), each_once([
    ("harp pe", "perf"), ("harp perf --ht", "--html"), ("harp sim ru", "run"),
    ("harp sim sweep --da", "--dask"), ("harp sim run x.yaml --expl", "--explain"),
    ("harp sim run topologies/", "topologies/")], ["bash", "zsh", "fish"]))
def test_shells_complete_commands_programs_options_and_files(example: tuple[str, str],
                                                             shell: str) -> None:
    words, found = example
    assert found in completed(shell, words)


def test_bash_takes_the_documented_line() -> None:
    """Zsh and fish are not in Debian's base; their scripts are click's, as this one is."""
    line = re.search(r'`(eval "\$\(_HARP_COMPLETE=bash_source harp\)")`',
                     (ROOT / "docs" / "use" / "python.md").read_text())
    assert line
    said = subprocess.run(["bash", "-c", f"{line[1]} && complete -p harp"], capture_output=True,
                          text=True, check=False, env={
                              **os.environ,
                              "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})
    assert (said.returncode, said.stderr) == (0, "")
    assert "_harp_completion harp" in said.stdout
