"""``harp env`` and ``harp plugin-path``: what makes NCCL use HARP."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from harp.cli import conf, env
from harp.cli.main import harp
from harp.lightcc.horovod.horovod_settings import NAMES as HOROVOD_NAMES
from tests.support import PATIENCE_S, ROOT


@pytest.fixture
def conf_file(tmp_path):
    def write(text):
        file = tmp_path / "harp.conf"
        file.write_text(text)
        return str(file)
    return write


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

def test_the_names_are_those_that_the_plugin_reads():
    source = (ROOT / "cnet" / "nccl" / "settings.c").read_text()
    known = re.findall(r'^    \{"(HARP_[A-Z_]+)"', source, re.MULTILINE)
    assert [*conf.NAMES, "HARP_CONF_FILE"] == known
    assert f'#define SETTINGS_FILE "{conf.FILE}"' in \
        (ROOT / "cnet" / "nccl" / "settings.h").read_text()


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


# ---- env --explain ----


@pytest.fixture
def explained(harp_here):
    def explain(*arguments, **settings):
        done = harp_here("env", "--explain", *arguments, **settings)
        assert done.returncode == 0, done.stderr
        return done.stdout
    return explain


def test_explain_says_what_is_in_force_and_where_it_comes_from(conf_file, explained):
    said = explained(LIGHT_INTRA_SIZE="4", HARP_CC="swift",
                     HARP_CONF_FILE=conf_file("HARP_PORT=udp\n"))
    assert "LIGHT_INTRA_SIZE=4  (environment)" in said
    assert "LIGHT_TOPK_RATIO=0.01  (default)" in said
    assert "HARP_CC=swift  (environment; only NCCL's plugin reads it)" in said
    assert re.search(r"HARP_PORT=udp  \(/.*harp.conf, which NCCL's plugin reads; LightCC reads the "
                     r"environment\)", said)


def test_explain_says_what_lightcc_reads_and_what_the_plugin_alone(explained):
    said = explained(HARP_PORT="tcp", HARP_MTU="1500")
    assert "HARP_PORT=tcp  (environment)" in said
    assert "HARP_MTU=1500  (environment; only NCCL's plugin reads it)" in said
    both, alone = re.findall(r"the other HARP_ settings .*: default  \((.*)\)", said)
    assert {*both.split(", ")} == {*conf.LIGHTCC} - {"HARP_PORT"}
    assert {*alone.split(", ")} == {*conf.NAMES} - {*conf.LIGHTCC, "HARP_MTU"}


@pytest.mark.parametrize("arguments", [["env"], ["env", "--explain"]])
@pytest.mark.parametrize(("name", "nearest"), [("HARP_PORTT", "HARP_PORT"),
                                               ("HARP_CONFFILE", "HARP_CONF_FILE")])
def test_an_unknown_name_in_the_environment_is_a_warning(arguments, name, nearest, harp_here):
    done = harp_here(*arguments, **{name: "udp", "HARP_STORE": "file:/tmp/x", "HARP_ELASTIC": "0"})
    assert done.returncode == 0
    assert done.stderr == (f"warning: {name} is not known and changes nothing; the nearest name is "
                           f"{nearest}\n")


def test_explain_says_which_of_horovods_variables_do_something(explained):
    said = explained(HOROVOD_FUSION_THRESHOLD="0", HOROVOD_TORUS_ALLREDUCE="1", HOROVOD_RANK="0")
    assert "HOROVOD_FUSION_THRESHOLD=0  (environment)" in said
    assert "HOROVOD_TORUS_ALLREDUCE=1  (environment; has no effect here)" in said
    assert "HOROVOD_RANK" not in said


def test_the_names_of_horovod_are_those_that_are_read():
    source = (ROOT / "harp" / "lightcc" / "horovod" / "horovod_settings.py").read_text()
    read = source[source.index("def from_env"):]
    names = {f"HOROVOD_{name}" for name in re.findall(r'_number\(env, "([A-Z_]+)"', read)}
    assert {*HOROVOD_NAMES} == names | {*re.findall(r'env.get\("(HOROVOD_[A-Z_]+)"', read)}


def test_explain_names_all_that_lightcc_reads(explained):
    folder = ROOT / "harp" / "lightcc"
    read = {name for path in folder.rglob("*.py") if path.name != "horovod_settings.py"
            for name in re.findall(r'"(HARP_[A-Z_]*[A-Z])"', path.read_text())}
    assert "HARP_IFNAME" in read
    said = explained(HARP_IFNAME="lo")
    internal = {"HARP_STORE", "HARP_ELASTIC"}  # by harp run
    assert read == {*conf.LIGHTCC} | internal
    assert read - internal <= set(re.findall("HARP_[A-Z_]+", said))
    assert "HARP_IFNAME=lo  (environment)" in said
    page = (ROOT / "docs" / "use" / "lightcc.md").read_text()
    assert all(f"| `{name}` |" in page for name in read)


@pytest.mark.parametrize(("settings", "ranks", "size", "line"), [
    ({}, 4, "1K", "1024 B: recursive-doubling: at most LIGHT_SMALL_THRESHOLD, 16384 B"),
    ({}, 4, "25M", "26214400 B: ring: more than LIGHT_SMALL_THRESHOLD, 16384 B"),
    ({"LIGHT_2D_ALLREDUCE": "1", "LIGHT_HIERARCHICAL_THRESHOLD": "1000000",
      "LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": "2097152"}, 16, "1M",
     "1048576 B: ring: more than LIGHT_SMALL_THRESHOLD, 16384 B; more than "
     "LIGHT_HIERARCHICAL_THRESHOLD, 1000000 B; less than LIGHT_TOPK_THRESHOLD, 2097152 B"),
    ({"LIGHT_2D_ALLREDUCE": "1"}, 16, "1M",
     "1048576 B: 2d (groups of 8): LIGHT_2D_ALLREDUCE is 1"),
    ({"LIGHT_2D_ALLREDUCE": "1"}, 12, "1M",
     "1048576 B: ring: groups of LIGHT_INTRA_SIZE 8 do not divide 12 ranks"),
    ({"LIGHT_2D_ALLREDUCE": "1", "LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_FP16": "1"}, 16, "4M",
     "4194304 B: 2d-topk (groups of 8, a rank sends 1310 of 131072 values, 2 B each): "
     "LIGHT_TOPK_ALLREDUCE is 1, and LIGHT_TOPK_THRESHOLD 1048576; LIGHT_2D_ALLREDUCE is 1"),
    ({"LIGHT_2D_ALLREDUCE": "1", "LIGHT_BITS": "8"}, 16, "4M",
     "4194304 B: 2d-few-bits (groups of 8, 8 bits a value between them): LIGHT_BITS is 8; "
     "LIGHT_2D_ALLREDUCE is 1"),
    ({"LIGHT_BITS": "2"}, 4, "4M", "4194304 B: few-bits (2 bits a value): LIGHT_BITS is 2"),
    ({"LIGHT_BITS": "2", "LIGHT_BITS_RING": "1"}, 4, "4M",
     "4194304 B: ring-few-bits (2 bits a value): LIGHT_BITS is 2; LIGHT_BITS_RING is 1"),
])
def test_explain_says_which_path_a_tensor_takes_and_why(settings, ranks, size, line, explained):
    assert line in explained("--ranks", str(ranks), "--size", size, **settings)


def test_explain_says_which_of_ddps_buckets_a_gradient_is_in(explained):
    said = explained("--ranks", "4", *(word for size in ("4M", "20M", "8M", "1K")
                                       for word in ("--gradient", size)),
                     LIGHT_TOPK_ALLREDUCE="1")
    why = "LIGHT_TOPK_ALLREDUCE is 1, and LIGHT_TOPK_THRESHOLD 1048576"
    assert said.splitlines()[-4:-1] == [
        "  DDP's bucket 0, gradient 0, 4194304 B: topk (a rank sends 10485 of 1048576 values, 4 B "
        f"each): {why}",
        "  DDP's bucket 1, gradients 1 to 2, 29360128 B: topk (a rank sends 73400 of 7340032 "
        f"values, 4 B each): {why}",
        "  DDP's bucket 2, gradient 3, 1024 B: recursive-doubling: at most LIGHT_SMALL_THRESHOLD, "
        "16384 B"]
    assert "DDP's bucket 1, gradient 1, " in explained("--gradient", "4M", "--gradient", "20M",
                                                       "--gradient", "8M", "--bucket-cap", "8M")


def test_explain_follows_the_tuners_table(tmp_path, explained):
    table = tmp_path / "tuning.json"
    table.write_text(json.dumps({"format": "harp-tuning-1", "communicators": [
        {"ranks": 4, "nodes": 2, "rows": [
            {"collective": "AllReduce", "min_bytes": 0, "max_bytes": 65536, "algorithm": "Tree",
             "protocol": "LL"}]}]}))
    said = explained("--ranks", "4", "--hosts", "2", "--size", "64K", "--size", "1M",
                     HARP_TUNER=str(table))
    assert "65536 B: tree (groups of 2): the table of HARP_TUNER has Tree from 0 to 65536 B" in said
    assert "1048576 B: ring" in said


def test_explanations_are_refused_without_a_row_to_explain(harp_here):
    done = harp_here("env", "--size", "4M")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --size has no effect without --explain\n"


@pytest.mark.parametrize(("settings", "arguments", "sentence"), [
    ({"LIGHT_TOPK": "1"}, [], "unknown setting LIGHT_TOPK; did you mean LIGHT_TOPK_"),
    ({"HARP_TIMEOUT": "ten"}, [], 'HARP_TIMEOUT is "ten": possible is 1 to 86400 (seconds)'),
    ({"HARP_CC": "bogus"}, [], 'HARP_CC is "bogus": possible is swift or fixed'),
    ({"HARP_MTU": "20"}, [], 'HARP_MTU is "20": possible is 576 to 65535'),
    ({"HARP_ENGINES": "0"}, [], 'HARP_ENGINES is "0": possible is auto, or 1 to 16'),
    ({"HARP_TUNER": "/nowhere"}, [], "HARP_TUNER /nowhere: No such file or directory"),
    ({"HARP_PLAN": "/nowhere"}, [], "HARP_PLAN /nowhere cannot be read: no such file"),
    ({"HARP_PLAN": sys.executable}, [], f"HARP_PLAN {sys.executable} cannot be read: it is not"),
    ({"HARP_TUNER": sys.executable}, [], f"HARP_TUNER {sys.executable}: it is not text"),
    ({"HOROVOD_TIMELINE": "/nowhere/it.json"}, [],
     "HOROVOD_TIMELINE: cannot write '/nowhere/it.json': there is no directory '/nowhere'"),
    ({"HOROVOD_CYCLE_TIME": "x"}, [], "HOROVOD_CYCLE_TIME is 'x'; allowed is a number"),
    ({}, ["--size", "4X"], "'4X' is not a size"),
    ({}, ["--json"], "--json has no effect with --explain"),
])
def test_explain_refuses_what_cannot_be(settings, arguments, sentence, harp_here):
    done = harp_here("env", "--explain", *arguments, **settings)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
