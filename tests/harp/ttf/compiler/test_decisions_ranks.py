"""One rank compiles for all: the others take its decision, and find its code in torch's caches."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.support.levels import long
from tests.support.torch_ranks import answers_of, start

RANK = Path(__file__).with_name("rank.py")


def run(tmp_path, backend, ranks):
    return answers_of(start(RANK, [str(tmp_path), backend], ranks))


@long
@pytest.mark.parametrize("ranks", [2, 4])
def test_other_ranks_take_the_first_ones_decision(tmp_path, ranks):
    first, *others = run(tmp_path, "aot_eager", ranks)
    assert len(others) == ranks - 1
    assert all(other["decisions"] == first["decisions"] for other in others)
    assert "1000 calls" in first["decisions"][0]
    assert "1000 steps take" in first["decisions"][1]


@long
@pytest.mark.parametrize("ranks", [2, 4])
def test_other_ranks_compile_nothing(tmp_path, ranks):
    first, *others = run(tmp_path, "inductor", ranks)
    assert first["compiled"] > 0
    assert [other["compiled"] for other in others] == [0] * (ranks - 1)
    assert all(other["found"] > 0 for other in others)
