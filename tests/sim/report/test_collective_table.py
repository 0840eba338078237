"""Tables of collectives."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from sim.report.collective_table import print_collective, print_collective_causes, print_limits
from tests.sim.report.test_answer_table import shown
from tests.support.report_samples import collective


def test_collective_table_has_a_line_a_size_and_stars_the_fastest() -> None:
    report = collective()
    lines = [line.split() for line in shown(print_collective, report).splitlines()
             if re.match(r" *\d", line)]
    assert len(lines) == 10
    for line in lines:
        size, times = int(line[0]), line[4::6]
        assert len(times) == 3
        best = min((row for row in report.rows if row.size_bytes == size),
                   key=lambda row: row.time_s)
        starred = [time for time in times if time.startswith("*")]
        assert [float(time[1:]) for time in starred] == pytest.approx([best.time_s * 1e6], rel=0.01)


def test_collective_table_is_one_line_a_size_in_a_file_and_wraps_by_groups_on_a_terminal() -> None:
    plain = shown(print_collective, collective(), 60)
    terminal = shown(print_collective, collective(), 80, terminal=True)
    assert plain.count("size") == 1
    assert terminal.count("size") == 3
    assert max(map(len, terminal.splitlines())) <= 80


def test_an_algorithm_that_lacks_a_size_leaves_a_dash() -> None:
    report = collective()
    rows = tuple(row for row in report.rows if row.algorithm != "2d" or row.size_bytes > 8)
    text = shown(print_collective, replace(report, rows=rows))
    assert re.search(r"^ +8 .* - +- +- +- +-$", text, re.MULTILINE)


def test_collective_limits_and_causes_have_a_line_each() -> None:
    text = shown(print_limits, collective())
    assert re.search(r"^ +8 +tree +16.01 +NIC 0 % +latency 100 %$", text, re.MULTILINE)
    lines = [line.split() for line in shown(print_collective_causes, collective()).splitlines()
             if "kernel-tcp" in line]
    assert len(lines) == 10  # of the fastest row of each size alone
    assert lines[0][:5] == ["8", "tree", "kernel-tcp.cost_per_byte", "0.3ns", "0.6ns"]
    assert lines[-1][:2] == [str(8**10), "2d"]
    assert all("40 %" in " ".join(line) for line in lines)
