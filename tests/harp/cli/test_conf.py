"""Settings of the NCCL plugin, from its file and the environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harp.cli import conf
from tests.support import ROOT


def test_the_names_are_those_that_the_plugin_reads():
    source = (ROOT / "cnet" / "nccl" / "settings.c").read_text()
    known = re.findall(r'^    \{"(HARP_[A-Z_]+)"', source, re.MULTILINE)
    assert [*conf.NAMES, "HARP_CONF_FILE"] == known
    assert f'#define SETTINGS_FILE "{conf.FILE}"' in \
        (ROOT / "cnet" / "nccl" / "settings.h").read_text()


def test_the_environment_wins(conf_file, harp_here):
    said = harp_here("env", HARP_CONF_FILE=conf_file("HARP_PORT=udp\nHARP_PATHS=4\n"),
                     HARP_PORT="xdp")
    assert "export HARP_PORT=xdp\n" in said.stdout
    assert "export HARP_PATHS=4\n" in said.stdout
    assert said.stdout.count("HARP_PORT") == 1


def test_a_byte_order_mark_is_skipped(conf_file, harp_here):
    said = harp_here("env", HARP_CONF_FILE=conf_file("\ufeffHARP_PORT=udp\n"))
    assert (said.returncode, said.stderr) == (0, "")
    assert "export HARP_PORT=udp\n" in said.stdout


def test_wrong_lines(conf_file, harp_here):
    file = conf_file("HARP_PORT=udp\nHARP_PRT=udp\n")
    said = harp_here("env", HARP_CONF_FILE=file)
    assert said.returncode == 0
    assert f"{file}:2: HARP_PRT is not known" in said.stderr
    assert "the nearest name is HARP_PORT" in said.stderr
    assert "HARP_PRT" not in said.stdout
    said = harp_here("env", HARP_CONF_FILE=conf_file("port udp\n"))
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == f'error: {file}:1: "port udp" is no line NAME=value\n'
    said = harp_here("env", HARP_CONF_FILE=conf_file("\nHARP_PORT=bogus\n"))
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == (f'error: {file}:2: HARP_PORT is "bogus": possible is auto, xdp, udp, '
                           'tcp, mem, or xdp,tcp and udp,tcp for a trial\n')
    said = harp_here("env", HARP_CONF_FILE=conf_file("HARP_CONF_FILE=/etc/other.conf\n"))
    assert (said.returncode, said.stdout) == (2, "")
    assert f"{file}:1: HARP_CONF_FILE is not for a file" in said.stderr
    said = harp_here("env", HARP_CONF_FILE=f"{file}.gone")
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == f"error: HARP_CONF_FILE {file}.gone does not exist\n"
    folder = Path(file).parent
    said = harp_here("env", HARP_CONF_FILE=str(folder))
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == f"error: the settings file {folder} cannot be read: Is a directory\n"


@pytest.mark.parametrize(("name", "reason"), [
    ("HARP_PLAN", "cannot be read: no such file or directory"),
    ("HARP_TUNER", "No such file or directory")])
def test_a_file_that_a_setting_names_and_that_is_not_there(conf_file, name, reason, harp_here):
    for settings in ({name: "/nowhere.json"},
                     {"HARP_CONF_FILE": conf_file(f"{name}=/nowhere.json\n")}):
        said = harp_here("env", **settings)
        assert (said.returncode, said.stdout) == (2, "")
        assert said.stderr.startswith(f"error: {name} /nowhere.json")
        assert said.stderr.endswith(f"{reason}\n")
