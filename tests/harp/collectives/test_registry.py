"""Plans by name: the parameters that they need, and elements of two bytes."""

from __future__ import annotations

import pytest

from harp.collectives.registry import make_plan


def test_fp16_halves_the_wire():
    for name in ("ring", "tree", "2d"):
        full = make_plan(name, ranks=16, nbytes=4 << 20, group=8)
        half = make_plan(name, ranks=16, nbytes=2 << 20, unit_bytes=2, group=8)
        assert sum(p.bytes_per_edge.sum() for p in full.phases()) == 2 * sum(
            p.bytes_per_edge.sum() for p in half.phases())


@pytest.mark.parametrize("missing", ["ranks", "nbytes"])
def test_required_parameters(missing):
    parameters = {"ranks": 2, "nbytes": 8}
    del parameters[missing]
    with pytest.raises(ValueError, match=f"plan 'ring' needs {missing}"):
        make_plan("ring", **parameters)
