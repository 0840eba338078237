"""One rank compiles for all: the others take its decision, and find its code in torch's caches."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.support.levels import long
from tests.support.torch_ranks import answers_of, start

RANK = Path(__file__).with_name("rank.py")


def run(tmp_path, backend):
    return answers_of(start(RANK, [str(tmp_path), backend], 2))


@long
def test_other_ranks_take_the_first_ones_decision(tmp_path):
    first, second = run(tmp_path, "aot_eager")
    assert first["decisions"] == second["decisions"]
    assert "1000 calls" in first["decisions"][0]
    assert "1000 steps take" in first["decisions"][1]


@long
def test_other_ranks_compile_nothing(tmp_path):
    first, second = run(tmp_path, "inductor")
    assert first["compiled"] > 0
    assert second["compiled"] == 0
    assert second["found"] > 0
