"""Explanations of settings: their origin and their effect."""

from __future__ import annotations

import json
import re
import sys

import pytest

from harp.cli import conf
from harp.lightcc.horovod.horovod_settings import NAMES as HOROVOD_NAMES
from tests.support import ROOT


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
