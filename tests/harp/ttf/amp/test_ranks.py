"""Ranks under DDP: trouble at one of them is judged alike by all, in the same step."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.harp.ttf.amp.rank import OFFSETS, OVERFLOWS
from tests.support.torch_ranks import answers_of, start

RANK = Path(__file__).with_name("rank.py")


def test_all_ranks_decide_alike_when_one_overflows_or_leaves_the_trend(tmp_path):
    answers = answers_of(start(RANK, str(tmp_path / "store"), 2))
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
