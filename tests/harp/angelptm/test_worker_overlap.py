"""Gathers and reductions of several ranks run beside the operators of both passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.levels import long
from tests.support.torch_ranks import answers_of, start

RANK = Path(__file__).with_name("overlap_rank.py")


@long
@pytest.mark.parametrize("stage", [2, 3])
def test_gathers_and_reductions_end_while_an_operator_computes(stage):
    each = answers_of(start(RANK, str(stage), 2))
    assert each == [{"gather": True, "reduction": True}] * 2
