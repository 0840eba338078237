"""Ranks under DDP: trouble at one of them is judged alike by all, in the same step."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.harp.ttf.amp.rank import OFFSETS, OVERFLOWS
from tests.support import PATIENCE_S

pytest.importorskip("torch")


def test_all_ranks_decide_alike_when_one_overflows_or_leaves_the_trend(tmp_path):
    ranks = [subprocess.Popen([sys.executable, "-m", "tests.harp.ttf.amp.rank",
                               str(tmp_path / "store"), str(rank), "2"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for rank in range(2)]
    answers = []
    for rank in ranks:
        out, err = rank.communicate(timeout=PATIENCE_S)
        assert rank.returncode == 0, err
        answers.append(json.loads(out.splitlines()[-1]))
    assert answers[0] == answers[1]
    decisions = answers[0]["decisions"]
    again = {step: reason for step, (_, _, reason) in enumerate(decisions) if reason}
    assert all(again[step] == "the loss is not finite" for step in OVERFLOWS[:2])
    assert again[OFFSETS[0]].startswith("the loss")
    assert all(applied for _, applied, _ in decisions)
    assert answers[0]["pinned"] == ["first"]
    assert [sentence.split(":")[0] for _, sentence in answers[0]["switches"]] == [
        "module first overflowed 2 times and stays in full precision", "half to full",
        "full to half"]
