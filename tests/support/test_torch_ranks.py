"""Ranks of a test that fails end with it."""

from __future__ import annotations

import signal

import pytest

from tests.conftest import pytest_runtest_teardown
from tests.support.torch_ranks import answers_of, start, under_way

FIRST_FAILS = """
import os, signal, sys
if os.environ["RANK"] == "0":
    sys.exit("rank 0 cannot go on")
signal.pause()
"""


def test_ranks_that_a_failed_test_did_not_wait_for_end_with_it(tmp_path):
    script = tmp_path / "first_fails.py"
    script.write_text(FIRST_FAILS, encoding="utf-8")
    ranks = start(script, "", 3)
    with pytest.raises(AssertionError, match="rank 0 cannot go on"):
        answers_of(ranks)
    assert under_way == set(ranks[1:])
    pytest_runtest_teardown()
    assert not under_way
    assert [rank.returncode for rank in ranks] == [1, -signal.SIGKILL, -signal.SIGKILL]
    assert all(pipe.closed for rank in ranks for pipe in (rank.stdout, rank.stderr))
