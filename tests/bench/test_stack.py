"""Rows of the subject `stack`; its figures are not judged here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager

import pytest
from click.testing import CliRunner
from rich.progress import Progress

from bench import arms
from bench.__main__ import main
from bench.arms import Bench, Sample
from bench.comparison import ArmRow, Measured, judge, run_group
from bench.stack.emulated import read
from bench.stack.stack_rows import CONNS, ROWS
from lab.c_programs import PLAIN
from tests.support import PATIENCE_S, ROOT
from tests.support.levels import long

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def bench(*options):
    return subprocess.run([sys.executable, "-m", "bench", "stack", *options],
                          capture_output=True, text=True, check=False, timeout=900, cwd=ROOT)


def measured(*values, **more):
    return Measured([Sample(value, 1.5, more) for value in values])


def row(**changes):
    return ArmRow(**{"id": "a", "what": "b", "function": None, "value": "ours",
                     "against": ("x", "y"), "target": 1.3, **changes})


def test_lines_that_a_program_writes_at_once_are_read_one_by_one():
    with subprocess.Popen(["sh", "-c", "printf 'one\\ntwo\\nhalf'; read end; printf '\\nend\\n'"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert arms.read_line(process, PATIENCE_S) == "one\n"
        assert arms.read_line(process, 0.0) == "two\n"
        assert arms.read_line(process, 0.0) == ""  # half a line does not hold the reader up
        assert process.communicate("\n")[0].splitlines() == ["", "end"]
    with subprocess.Popen(["sh", "-c", "printf last"], stdout=subprocess.PIPE) as process:
        assert [arms.read_line(process, PATIENCE_S) for _ in range(2)] == ["last", ""]


def test_the_best_reference_counts_and_medians_are_compared():
    got = judge(row(), {"ours": measured(1.0, 6.0, 9.0), "x": measured(4.0), "y": measured(5.0)})
    assert (got["value"], got["reference"], got["reference_is"]) == (6.0, 5.0, "y")
    assert got["ratio"] == pytest.approx(1.2)
    assert got["ok"] is False
    assert (got["least"], got["most"]) == (1.0, 9.0)


def test_a_latency_is_good_below_its_target():
    latency = row(against=(), target=300, lower=True)
    assert judge(latency, {"ours": measured(200.0)})["ok"] is True
    assert judge(latency, {"ours": measured(301.0)})["ok"] is False
    assert judge(latency, {"ours": measured(200.0)})["ratio"] is None


def test_the_best_of_other_settings_is_shown_and_judges_nothing():
    got = judge(row(beside=("p", "q")), {"ours": measured(6.0), "x": measured(4.0),
                                         "p": measured(7.0), "q": measured(9.0)})
    assert (got["value"], got["ratio"], got["ok"]) == (6.0, 1.5, True)
    assert (got["other"], got["other_is"]) == (9.0, "q")


def test_a_limit_that_is_passed_or_not_known_is_a_miss():
    limited = row(against=("x",), target=0.9, limits={"again_share": 0.05})
    found = {"x": measured(1.0)}
    assert judge(limited, {**found, "ours": measured(1.0, again_share=0.04)})["ok"] is True
    assert judge(limited, {**found, "ours": measured(1.0, again_share=0.06)})["ok"] is False
    assert judge(limited, {**found, "ours": measured(1.0)})["ok"] is False


def test_lines_of_the_emulated_machine_are_sorted_by_arm():
    line = '{"bytes": 1000, "seconds": 1.0, "cpu_s": 1.0}\n'
    got = read(f"arm a\nready\n{line}arm b\nnoise\n{line}arm a\n{line}arm b\n{line}", 2, ["a", "b"])
    assert [len(samples) for samples in got.values()] == [2, 2]
    with pytest.raises(RuntimeError, match="b gave 0 figures of 1"):
        read(f"arm a\n{line}arm b\nfailed b\n", 1, ["a", "b"])


@pytest.mark.long
@needs_root
def test_json_rows_can_be_calibrated_with(tmp_path):
    done = bench("--json", "--only", "frame-cost", "--seconds", "0.02", "--rounds", "2")
    assert done.returncode in (0, 1), done.stderr
    (got,) = json.loads(done.stdout)
    assert {"id", "value", "unit", "reference", "ratio", "target", "ok"} <= set(got)
    assert (got["id"], got["unit"]) == ("frame-cost", "ns")
    assert got["ok"] == (got["value"] <= got["target"])
    rows = tmp_path / "rows.json"
    rows.write_text(done.stdout)
    subprocess.run([sys.executable, "-m", "sim.calibrate", "--stack", "harp", "--from", str(rows)],
                   check=True, cwd=ROOT, capture_output=True, timeout=PATIENCE_S)


@pytest.fixture
def quick_bench(monkeypatch, tmp_path):
    """Run the command with programs that are linked with the archive of other tests."""
    monkeypatch.setattr(arms, "RELEASE", PLAIN)
    monkeypatch.setattr(arms, "BUILT", tmp_path / "programs")

    def run(*options):
        done = CliRunner().invoke(main, ["stack", *options])
        assert done.exit_code in (0, 1), done.output
        return done
    return run


@long
@needs_root
def test_both_directions_are_counted(quick_bench):
    done = quick_bench("--json", "--only", "udp-both", "--seconds", "0.05", "--rounds", "1")
    (got,) = json.loads(done.stdout)
    assert got["value"] > 0
    assert got["reference_is"] in ROWS["udp-both"].against


@needs_root
def test_table_is_kept_and_shown(quick_bench, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([{"id": "other"}, {"id": "frame-cost", "value": 1.0}]))
    done = quick_bench("--only", "frame-cost", "--seconds", "0.02", "--rounds", "1", "--save",
                       str(file))
    assert re.search(r"^frame-cost .* ns .* ≤ 300 ", done.stdout, re.MULTILINE)
    assert [kept["id"] for kept in json.loads(file.read_text())] == ["other", "frame-cost"]
    shown = quick_bench("--show", str(file), "--only", "frame-cost")
    table, _, stamp = shown.stdout.partition("\n\n")
    assert (shown.exit_code, table + "\n") == (0, done.stdout)
    assert re.match(r"1 row of \d{4}-\d\d-\d\d, commit \w+", stamp)


def test_a_row_beside_tcp_is_measured_for_as_long_as_its_windows_take():
    @contextmanager
    def group(bench):
        yield {"ours": lambda: Sample(bench.seconds, None, {})}

    rows = [row(id="fast", against=()), row(id="slow", against=(), least_s=4.0)]
    for chosen, wanted in ((rows[:1], 0.5), (rows, 4.0)):
        with Progress(disable=True) as progress:
            got = run_group(group, chosen, Bench(seconds=0.5, rounds=1), progress)
        assert got["fast"]["value"] == wanted


def test_all_rows_are_named_once():
    assert list(ROWS) == ["zc-tcp", "zc-raw", "zc-copy", "zc-tcp-3400", "zc-tcp-8500", "udp-tcp",
                          "tcp-port", "tcp-2-paths", "tcp-dead-flow", "udp-raw", "udp-both",
                          "udp-loss", "udp-1g", "udp-beside-cubic-1", "udp-beside-cubic-4",
                          "udp-beside-bbr-1", "udp-beside-bbr-4", "udp-policed", "mem-1MiB",
                          "mem-64B", "mem-rtt", "frame-cost", "engines-2", *CONNS, "xdp-3400",
                          "xdp-1500", "xdp-9000"]


@pytest.mark.parametrize(("options", "message"), [
    (("--only", "zz"), "there is no row 'zz'; there are zc-tcp"),
    (("--cpus", "a"), "two numbers with a comma between"),
    (("--cpus", "0,99"), "this process may run on"),
    (("--seconds", "0"), "0.0 is not in the range 0<x<=3600"),
    (("--show", "README.md"), "README.md is no file of rows"),
    (("--save", "README.md"), "README.md is no file of rows"),
    (("--show", "nowhere.json"), "--show nowhere.json: there is no such file"),
])
def test_a_wrong_option_is_one_sentence(options, message):
    done = bench(*options)
    assert done.returncode == 2
    assert not done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr
