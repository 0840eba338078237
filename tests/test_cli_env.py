"""``harp env`` and ``harp plugin-path``: what makes NCCL use HARP."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from c_programs import ROOT
from click.testing import CliRunner

from harp.tools import conf, plugin_path
from harp.tools.main import harp

CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("HARP_", "NCCL_"))}
HARP = [sys.executable, "-m", "harp.tools.main"]


def run(*arguments, **settings):
    return subprocess.run([*HARP, *arguments], env={**CLEAN, **settings}, capture_output=True,
                          text=True, check=False, timeout=60)


@pytest.fixture
def conf_file(tmp_path):
    def write(text):
        file = tmp_path / "harp.conf"
        file.write_text(text)
        return str(file)
    return write


# ---- plugin-path ----

def test_plugin_path_names_a_plugin_that_nccl_can_load():
    done = run("plugin-path")
    assert (done.returncode, done.stderr) == (0, "")
    path, = done.stdout.splitlines()
    assert Path(path).is_absolute()
    assert Path(path).name == "libnccl-net-harp.so"
    ctypes.c_char_p.in_dll(ctypes.CDLL(path), "ncclNetPlugin_v6")


def test_plugin_path_of_an_installed_package(tmp_path, monkeypatch):
    library = tmp_path / "harp" / "libnccl-net-harp.so"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setattr(plugin_path, "files", lambda package: tmp_path / package)
    assert CliRunner().invoke(harp, ["plugin-path"]).output == f"{library}\n"
    library.unlink()
    for command in ("plugin-path", "env"):
        result = CliRunner().invoke(harp, [command], env=dict.fromkeys(conf.NAMES))
        assert result.exit_code == 1
        assert "there is no libnccl-net-harp.so" in result.stderr
        assert result.stdout == ""


# ---- env ----

def test_the_names_are_those_that_the_plugin_reads():
    source = (ROOT / "cnet" / "nccl" / "settings.c").read_text()
    known = re.findall(r'^    \{"(HARP_[A-Z_]+)"', source, re.MULTILINE)
    assert [*conf.NAMES, "HARP_CONF_FILE"] == known
    assert f'#define SETTINGS_FILE "{conf.FILE}"' in \
        (ROOT / "cnet" / "nccl" / "settings.h").read_text()


def test_a_shell_gets_the_environment_as_it_is_meant(conf_file):
    dump = "/tmp/it's $HOME `here`"
    file = conf_file(f"# settings\n\n HARP_PORT = udp\nHARP_IFNAME==eth1,eth2\nHARP_DUMP={dump}\n"
                     "HARP_PATHS=\n")
    said = run("env", HARP_CONF_FILE=file)
    assert (said.returncode, said.stderr) == (0, "")
    shell = subprocess.run(["sh", "-c", f"{said.stdout}\nenv -0"], env={}, capture_output=True,
                           text=True, check=True, timeout=60)
    got = dict(line.split("=", 1) for line in shell.stdout.split("\0") if line)
    assert {name: value for name, value in got.items() if name.startswith(("HARP", "NCCL"))} == {
        "NCCL_NET_PLUGIN": run("plugin-path").stdout.strip(), "NCCL_NET": "HARP",
        "HARP_PORT": "udp", "HARP_IFNAME": "=eth1,eth2", "HARP_DUMP": dump}
    assert json.loads(run("env", "--json", HARP_CONF_FILE=file).stdout) == {
        name: got[name] for name in got if name.startswith(("HARP", "NCCL"))}


def test_the_environment_wins(conf_file):
    said = run("env", HARP_CONF_FILE=conf_file("HARP_PORT=udp\nHARP_PATHS=4\n"), HARP_PORT="xdp")
    assert "export HARP_PORT=xdp\n" in said.stdout
    assert "export HARP_PATHS=4\n" in said.stdout
    assert said.stdout.count("HARP_PORT") == 1


def test_wrong_lines(conf_file):
    file = conf_file("HARP_PORT=udp\nHARP_PRT=udp\n")
    said = run("env", HARP_CONF_FILE=file)
    assert said.returncode == 0
    assert f"{file}:2: HARP_PRT is not known" in said.stderr
    assert "the nearest name is HARP_PORT" in said.stderr
    assert "HARP_PRT" not in said.stdout
    said = run("env", HARP_CONF_FILE=conf_file("port udp\n"))
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == f'error: {file}:1: "port udp" is no line NAME=value\n'
    said = run("env", HARP_CONF_FILE=conf_file("HARP_CONF_FILE=/etc/other.conf\n"))
    assert (said.returncode, said.stdout) == (1, "")
    assert f"{file}:1: HARP_CONF_FILE is not for a file" in said.stderr
    said = run("env", HARP_CONF_FILE=f"{file}.gone")
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == f"error: HARP_CONF_FILE {file}.gone does not exist\n"
    folder = Path(file).parent
    said = run("env", HARP_CONF_FILE=str(folder))
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == f"error: the file of settings {folder} cannot be read: Is a directory\n"
