"""A wheel carries the NCCL plugin, and the plugin runs on hosts that have nothing else.

The wheel is built from what `docker build` sees (deploy/Dockerfile.dockerignore).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.support import ROOT
from tests.support.levels import long

LOADS = """
import ctypes, importlib.util, json, pathlib
folder = pathlib.Path(importlib.util.find_spec("harp").origin).parent
names = ["libnccl-net-harp.so", "libnccl-net.so"]
tables = [f"ncclNetPlugin_v{version}" for version in range(6, 13)]
for name in names:
    library = ctypes.CDLL(str(folder / name))
    found = [ctypes.c_char_p.in_dll(library, table).value.decode() for table in tables]
    assert found == ["HARP"] * 7, found
print(json.dumps(str(folder)))
"""


def run(*words: str | Path, **options) -> str:
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False,
                          timeout=900, env={**os.environ, "PATH": tools}, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def docker_context(folder: Path) -> Path:
    """Copy what deploy/Dockerfile.dockerignore lets through."""
    lines = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    let = [line.removeprefix("!") for line in lines if line.startswith("!")]
    assert [line for line in lines if not line.startswith(("!", "#"))] == ["*", "**/__pycache__"]
    for name in let:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name,
                            ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index",
        "--config-settings=setup-args=-Dnccl_default=true", "--wheel-dir", folder / "wheels",
        docker_context(folder / "source"))
    wheel, = (folder / "wheels").iterdir()
    return wheel


@pytest.fixture(scope="module")
def installed(wheel) -> Path:
    """Where the package lies in an environment of its own that has nothing but the wheel."""
    folder = wheel.parents[1]
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index",
        wheel)
    found = Path(json.loads(run(python, "-I", "-c", LOADS, cwd="/")))
    assert folder in found.parents
    return found


@long
def test_the_installed_command_says_where_the_plugin_is(installed):
    python = installed.parents[3] / "bin" / "python"
    others = f"import sys; sys.path.append({str(Path(click.__file__).parents[1])!r})"
    command = f"{others}; from harp.cli.main import main; sys.argv = ['harp', 'plugin-path']"
    said = run(python, "-I", "-c", f"{command}; main()", cwd="/")
    assert Path(said.strip()) == installed / "libnccl-net-harp.so"


@long
def test_the_wheel_brings_a_plugin_that_exports_the_tables_only(installed):
    symbols = run("objdump", "-T", installed / "libnccl-net-harp.so")
    exported = {line.split()[-1] for line in symbols.splitlines()
                if " g " in line and "*UND*" not in line}
    assert exported == {*(f"ncclNetPlugin_v{version}" for version in range(6, 13)),
                        *(f"ncclTunerPlugin_v{version}" for version in range(4, 7))}


@long
def test_the_plugin_of_the_wheel_loads_on_old_systems(installed):
    plugin = installed / "libnccl-net-harp.so"
    needs = {tuple(map(int, version.split(".")))
             for version in re.findall(r"GLIBC_([\d.]+)", run("objdump", "-T", plugin))}
    assert max(needs) <= (2, 31)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", plugin)))
    assert needed <= {"libc.so.6", "libpthread.so.0", "libm.so.6"}


@long
def test_the_wheel_is_of_a_platform_that_pip_takes_on_old_systems(wheel, tmp_path):
    """The 2018 base that PyPI still serves: RHEL 8, Debian 10, Ubuntu 20.04."""
    machine = os.uname().machine
    run(sys.executable, "-m", "auditwheel", "repair", "--plat", f"manylinux_2_28_{machine}",
        "-w", tmp_path, wheel)
    made, = tmp_path.iterdir()
    assert f"manylinux_2_28_{machine}" in made.name or f"manylinux_2_27_{machine}" in made.name


def test_a_python_that_only_its_launcher_has_is_left_out(tmp_path):
    """A version manager has a command for each version, also for those that it does not start."""
    launcher = tmp_path / "python9.9"
    launcher.write_text("#!/bin/sh\nexit 127\n")
    launcher.chmod(0o755)
    done = subprocess.run(
        ["make", "-o", "setup", "wheels", "PYTHONS=python9.9"], cwd=ROOT, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert "wheels: python9.9 is not here\n" in done.stdout
