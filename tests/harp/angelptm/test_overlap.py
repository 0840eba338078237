"""Gathers and reductions of several ranks run beside the operators of both passes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.harp.lightcc.test_torch import found, start
from tests.support import ROOT

RANK = Path(__file__).with_name("overlap_rank.py")


@pytest.mark.parametrize("stage", [2, 3])
def test_gathers_and_reductions_end_while_an_operator_computes(stage):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    each = found(start(str(stage), 2, program=RANK, PYTHONPATH=path))
    assert each == [{"gather": True, "reduction": True}] * 2
