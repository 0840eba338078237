"""``harp env`` and ``harp plugin-path``: what makes NCCL use HARP."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path

from click.testing import CliRunner

from harp.cli import conf, env
from harp.cli.main import harp
from tests.support import PATIENCE_S

# ---- plugin-path ----

def test_plugin_path_names_a_plugin_that_nccl_can_load(harp_here):
    done = harp_here("plugin-path")
    assert (done.returncode, done.stderr) == (0, "")
    path, = done.stdout.splitlines()
    assert Path(path).is_absolute()
    assert Path(path).name == "libnccl-net-harp.so"
    ctypes.c_char_p.in_dll(ctypes.CDLL(path), "ncclNetPlugin_v6")


def test_plugin_path_of_an_installed_package(tmp_path, monkeypatch):
    library = tmp_path / "harp" / "libnccl-net-harp.so"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setattr(env, "files", lambda package: tmp_path / package)
    assert CliRunner().invoke(harp, ["plugin-path"]).output == f"{library}\n"
    library.unlink()
    for command in ("plugin-path", "env"):
        result = CliRunner().invoke(harp, [command], env=dict.fromkeys(conf.NAMES))
        assert result.exit_code == 1
        assert "has no libnccl-net-harp.so" in result.stderr
        assert result.stdout == ""


# ---- env ----

def test_a_shell_gets_the_environment_as_it_is_meant(conf_file, harp_here):
    dump = "/tmp/it's $HOME `here`"
    file = conf_file(f"# settings\n\n HARP_PORT = udp\nHARP_IFNAME==eth1,eth2\nHARP_DUMP={dump}\n"
                     "HARP_PATHS=\n")
    said = harp_here("env", HARP_CONF_FILE=file)
    assert (said.returncode, said.stderr) == (0, "")
    shell = subprocess.run(["sh", "-c", f"{said.stdout}\nenv -0"], env={}, capture_output=True,
                           text=True, check=True, timeout=PATIENCE_S)
    got = dict(line.split("=", 1) for line in shell.stdout.split("\0") if line)
    assert {name: value for name, value in got.items() if name.startswith(("HARP", "NCCL"))} == {
        "NCCL_NET_PLUGIN": harp_here("plugin-path").stdout.strip(), "NCCL_NET": "HARP",
        "HARP_PORT": "udp", "HARP_IFNAME": "=eth1,eth2", "HARP_DUMP": dump}
    assert json.loads(harp_here("env", "--json", HARP_CONF_FILE=file).stdout) == {
        name: got[name] for name in got if name.startswith(("HARP", "NCCL"))}
