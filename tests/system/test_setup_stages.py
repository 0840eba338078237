"""`.ci/setup.sh`: what `make run` installs, and what only the tests need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import PATIENCE_S, ROOT

TOOLS = ("sh", "cat", "cksum", "cut", "sed", "tr", "mkdir", "cp", "chmod", "dirname")
PYTHON = """case "$*" in
*sysconfig*) echo "$0" ;;
-V) echo "Python 3.11" ;;
"-m venv "*)
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    printf '#!/bin/sh\\necho "pip $*" >>{log}\\n' >"$3/bin/pip"
    chmod +x "$3/bin/pip" ;;
esac
"""


@pytest.fixture
def bare(tmp_path):
    """A machine with a shell, Python and the right to install, on which nothing else is found."""
    for name in ("pyproject.toml", "meson.build", ".ci/setup.sh"):
        target = tmp_path / "project" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    folder, log = tmp_path / "bin", tmp_path / "log"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(str(shutil.which(tool)))
    stubs = {"python3": PYTHON.replace("{log}", str(log)), "id": "echo 0\n",
             "apt-get": f'echo "apt-get $*" >>{log}\n: >{folder}/cc\nchmod +x {folder}/cc\n'}
    for name, text in stubs.items():
        (folder / name).write_text(f"#!{folder}/sh\n{text}")
        (folder / name).chmod(0o755)

    def setup(*stage):
        log.write_text("")
        done = subprocess.run([str(folder / "sh"), ".ci/setup.sh", *stage], check=False,
                              cwd=tmp_path / "project", env={"PATH": str(folder)},
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return log.read_text()

    return setup


def test_the_main_job_installs_a_compiler_and_no_tool_of_the_tests(bare):
    done = bare("run")
    assert "python3-dev gcc" in done
    for tool in ("qemu", "clang", "tshark", "[dev]"):
        assert tool not in done
    assert bare("run") == ""


def test_the_tests_get_the_rest(bare):
    bare("run")
    done = bare("test")
    for tool in ("qemu-system-x86", "clang", "tshark", "strace", "--no-build-isolation -e .[dev]"):
        assert tool in done
    assert "pip" not in bare("run")


def test_without_a_stage_everything_is_installed(bare):
    assert ".[dev]" in bare()


def test_programs_that_start_together_survive_a_stale_build() -> None:
    """Each import of an editable build builds what is stale; one waits for the other.

    Meson is told of the same ninja, and runs it within a turn, which once waited for itself.
    """
    (ROOT / "meson.build").touch()
    ninja = {"NINJA": str(Path(sys.executable).with_name("ninja-in-turn"))}
    programs = [subprocess.Popen([sys.executable, "-c", "import harp.net"], cwd=ROOT,
                                 env={**os.environ, **ninja}, stderr=subprocess.PIPE, text=True)
                for _ in range(3)]
    ended = [(program.communicate(timeout=PATIENCE_S)[1], program.returncode)
             for program in programs]
    assert ended == [("", 0)] * 3
