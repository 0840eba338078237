"""Times of collectives that run alone."""

from __future__ import annotations

import pytest

from harp.collectives.registry import make_plan
from tests.sim.answer.test_collective_bench import timer
from tests.support.cluster_files import IDEAL


def test_a_collective_alone_pays_for_its_launch_once(tmp_path):
    """Of as many messages as it likes."""
    plan = make_plan("ring", ranks=8, nbytes=1 << 20)
    free_s, dear_s = (timer(tmp_path, hosts=8, stacks={
        "ideal": IDEAL | {"launch": launch}}).seconds(plan) for launch in ("0s", "15us"))
    assert dear_s - free_s == pytest.approx(15e-6)
