"""The chaos port: its statistics, its clock, its text."""

import subprocess

import pytest

from lab.c_programs import build, library, run

# As struct harp_chaos has them.
FIELDS = ("seed", "drop", "burst", "burst_length", "delay", "jitter", "reorder", "reorder_delay",
          "duplicate", "truncate", "corrupt", "rate", "bucket", "queue")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("port_chaos")
    return build(folder / "test", ["tests/cnet/ports/test_port_chaos.c", str(library())])


def test_faults(program):
    run(program)


@pytest.mark.parametrize(("text", "values"), [
    ("", {}),
    ("drop=1%,delay=1ms,reorder=0.1%,seed=7",
     {"drop": 10_000, "delay": 1_000_000, "reorder": 1000, "seed": 7}),
    ("burst=20ppm,burst_length=100,jitter=1.5us,reorder_delay=2s",
     {"burst": 20, "burst_length": 100, "jitter": 1500, "reorder_delay": 2 * 10**9}),
    ("duplicate=100%,truncate=0%,corrupt=0.0001%",
     {"duplicate": 10**6, "corrupt": 1}),
    ("rate=2.5Gbit,bucket=3000,queue=1MiB",
     {"rate": 2_500_000_000, "bucket": 3000, "queue": 1 << 20}),
])
def test_text(program, text, values):
    assert dict(zip(FIELDS, map(int, run(program, "parse", text).split()), strict=True)) == {
        **dict.fromkeys(FIELDS, 0), **values}


@pytest.mark.parametrize(("text", "says"), [
    ("dorp=1%", 'there is no fault "dorp"; did you mean "drop"?'),
    ("drop=1%,reoder=1%", 'there is no fault "reoder"; did you mean "reorder"?'),
    ("latency=1ms", 'there is no fault "latency"; did you mean'),
    ("drop", '"drop" has no value; faults are written as drop=1%'),
    ("drop=", "drop=: it is 0% to 100%, as 1% or 500ppm"),
    ("drop=1", "drop=1: it is 0% to 100%, as 1% or 500ppm"),
    ("drop=101%", "drop=101%: it is 0% to 100%"),
    ("drop=-1%", "drop=-1%: it is 0% to 100%"),
    ("drop=nan%", "drop=nan%: it is"),
    ("delay=5", "delay=5: it is at most 60s, as 200us or 1.5ms"),
    ("delay=1h", "delay=1h: it is at most 60s"),
    ("rate=1GB", "rate=1GB: it is at most 1000Gbit, as 100Mbit"),
    ("queue=1.5KB", "queue=1.5KB: it is at most 1024MiB"),
    ("seed=1.5", "seed=1.5: it is a whole number"),
    ("drop=1%,", "nothing follows the last comma"),
    (",drop=1%", "faults are written as"),
    ("x" * 300, "faults are written as"),
])
def test_text_that_is_wrong(program, text, says):
    done = subprocess.run([program, "parse", text], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert says in done.stdout
