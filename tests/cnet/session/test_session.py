"""The C tests of the session's parts."""

from __future__ import annotations

import pytest

from lab.c_programs import PLAIN, build, library, run
from tests.support.levels import long_except
from tests.support.planted_bugs import CREDIT_LOST, IN_REVERSE, plant

PAIR = "tests/cnet/session/session_pair.c"


@pytest.mark.parametrize("name", long_except(
    ["session_stream", "session_paths", "session_pmtu", "session_fragments", "session_ack",
     "session_end", "session_far_buffer", "session_laps", "session_memory", "session_spurious"],
    "session_stream", "session_paths", "session_ack", "session_end", "session_fragments"))
def test_two_sessions(name, tmp_path):
    run(build(tmp_path / name, [f"tests/cnet/session/test_{name}.c", PAIR,
                                str(library())]))


def test_a_sender_that_does_not_ask_for_credit_is_found(tmp_path):
    program = build(tmp_path / "silent", ["tests/cnet/session/test_session_stream.c", PAIR,
                                          *(f"cnet/{edit.file}" for edit in CREDIT_LOST.edits),
                                          str(library(PLAIN))], PLAIN,
                    plant(CREDIT_LOST, tmp_path / "planted"))
    with pytest.raises(AssertionError, match="has_arrived"):
        run(program)


def test_the_bench_of_the_session_runs(tmp_path):
    program = build(tmp_path / "cost", ["bench/c/session_cost.c", str(library())])
    assert run(program, "0.02").count("ns a frame and end") == 13


REVERSE = ["tests/cnet/session/test_reverse.c", "cnet/session/reverse.c"]


def test_reverse(tmp_path):
    run(build(tmp_path / "reverse", REVERSE))


@pytest.mark.parametrize("bug", IN_REVERSE)
def test_a_wrong_queue_of_the_way_back_is_found(bug, tmp_path):
    program = build(tmp_path / "reverse", REVERSE, ["-O1"], plant(IN_REVERSE[bug], tmp_path / "x"))
    with pytest.raises(AssertionError, match="queue"):
        run(program)


@pytest.mark.parametrize("part", ["inbox", "listener", "loss", "outbox", "pacer", "path_choice",
                                  "reassembly", "rtt", "sack", "sent"])
def test_a_part_by_itself(part, tmp_path):
    run(build(tmp_path / part, [f"tests/cnet/session/test_{part}.c", str(library())]))
