"""Sparse allreduces: the bytes of the published example."""

from __future__ import annotations

import numpy as np
import pytest

from harp.collectives.registry import make_plan


def test_topk_of_the_published_example():
    """VGG16's 11 large tensors on 2 x 8 GPUs: 11 MB of pairs leave a host, instead of 551 MB."""
    elements, ratio = 137_790_000, 0.01
    plan = make_plan("2d-topk", ranks=16, nbytes=4 * elements, group=8, ratio=ratio)
    select, add = (p.local for p in plan.phases() if p.local)
    assert select.elements.sum() == 2 * elements
    assert add.elements.max() == 2 * int(ratio * elements / 8)
    inter = next(p for p in plan.phases() if p.label.startswith("inter"))
    leaves = np.bincount(inter.src // 8, inter.bytes_per_edge)
    assert leaves == pytest.approx(ratio * elements * 8, rel=1e-5)
    half = make_plan("2d-topk", ranks=16, nbytes=4 * elements, group=8, ratio=ratio, value_bytes=2)
    inter = next(p for p in half.phases() if p.label.startswith("inter"))
    leaves = np.bincount(inter.src // 8, inter.bytes_per_edge)
    assert leaves == pytest.approx(ratio * elements * 6, rel=1e-5)
