"""``harp top``: engines that run, that go on, and that were killed."""

import json
import subprocess
from dataclasses import replace
from io import StringIO

import pytest
from click.testing import CliRunner
from rich.console import Console

from harp.cli.stats_files import forget, snapshots
from harp.cli.top import Rates, picture, top
from lab.c_programs import build, library


@pytest.fixture
def sample(tmp_path):
    """A process with the statistics of an engine."""
    program = build(tmp_path / "sample", ["tests/cnet/engine/stats_sample.c", str(library())])
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()
    for engine in snapshots([process.pid]):
        forget(engine)


def step(process):
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ready\n"


def drawn(engines, rates, columns=150):
    console = Console(width=columns, file=StringIO())
    console.print(picture(engines, rates, columns=columns))
    return console.file.getvalue()


def invoke(*arguments):
    done = CliRunner().invoke(top, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def refuse_as_gone(*arguments):
    done = CliRunner().invoke(top, [str(argument) for argument in arguments])
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"process {arguments[-1]} runs no engine" in done.stderr


def test_json_has_every_counter(sample):
    [engine] = json.loads(invoke("--json", sample.pid))
    assert engine["name"] == "sample"
    assert engine["pid"] == sample.pid
    assert engine["alive"]
    assert engine["engine"]["turns"] == 100
    assert engine["ports"][0]["sent"] == 10
    [connection] = engine["connections"]
    assert connection["id"] == 0xabcd00001234
    assert (connection["state"], connection["peer"]) == ("open", "[fd00::2]:7001")
    assert connection["lost"] == 1
    [path] = engine["paths"]
    assert (path["connection"], path["number"]) == (0xabcd00001234, 1)
    assert (path["local"], path["remote"]) == ("[fd00::1]:7000", "10.0.0.2:7001")
    assert (path["alive"], path["sent"], path["lost"]) == (1, 100, 1)
    assert engine["events"] == [[1000000, 0x1234, "path died: path 1, srtt 5000 ns"]]


def test_once_shows_sums(sample):
    step(sample)
    shown = invoke("--once", "--events", 1, sample.pid)
    for text in (f"process {sample.pid}", "busy 25%", "2.0M bytes", "2 frames refused", "00001234",
                 "[fd00::2]:7001", "3/4", "12.5 µs", "[bold]as it is", "path died: path 2"):
        assert text in shown
    assert "path died: path 1" not in shown


def test_rates_are_between_two_looks(sample):
    before = snapshots([sample.pid])
    step(sample)
    shown = drawn(snapshots([sample.pid]), Rates(before, 0.5))
    assert "sent 0.016 Gb/s" in shown


def test_nothing_is_cut_off_on_a_terminal_of_80_columns(sample):
    [engine] = snapshots([sample.pid])
    row = engine.connections[0] | {"state": "closed", "reason": 256, "peer": "10.0.131.222:34423",
                                   "smoothed_ns": 802500, "lost": 12345}
    shown = drawn([replace(engine, connections=[row])], Rates(None, 1.0), columns=80)
    head, *lines = shown.splitlines()[4:-1]
    assert head.split() == ["id", "peer", "state", "paths", "rtt", "bytes", "out", "bytes", "in",
                            "lost"]
    at = [head.index(name) for name in ("peer", "state", "paths")]
    assert "".join(line[at[0]:at[1]].strip() for line in lines) == "10.0.131.222:34423"
    assert " ".join(line[at[1]:at[2]].strip() for line in lines).strip() == "closed: silent"


def test_a_killed_engine_is_shown_until_it_is_forgotten(sample):
    sample.kill()
    sample.wait()
    assert "(dead)" in invoke("--once", "--keep", sample.pid)
    assert "path died" in invoke("--once", "--events", 5, sample.pid)
    refuse_as_gone("--once", sample.pid)


def test_an_engine_that_ends_is_gone(sample):
    sample.stdin.close()
    assert sample.wait() == 0
    refuse_as_gone("--json", sample.pid)
