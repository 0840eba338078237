"""Plans of every kind for the tests of collectives, drawn by hypothesis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from harp.collectives.few_bits_plan import BITS
from harp.collectives.registry import make_plan, plan_names

if TYPE_CHECKING:
    from harp.collectives.collective_plan import Plan


def divisors(ranks: int) -> list[int]:
    return [g for g in range(1, ranks + 1) if ranks % g == 0]


@st.composite
def plans(draw: st.DrawFn, *, max_ranks: int = 64, min_ranks: int = 1, min_elements: int = 0,
          max_elements: int = 300) -> Plan:
    """A plan of any kind: any number of ranks, sizes below it, tails, placements and chunks."""
    ranks = draw(st.integers(min_ranks, max_ranks))
    name = draw(st.sampled_from(plan_names()))
    unit_bytes = 4 if name.endswith("few-bits") else draw(st.sampled_from([2, 4, 8]))
    return make_plan(
        name, ranks=ranks, unit_bytes=unit_bytes,
        nbytes=unit_bytes * draw(st.integers(min_elements, max_elements)),
        group=draw(st.sampled_from(divisors(ranks))),
        order=draw(st.one_of(st.none(), st.permutations(range(ranks)))),
        root=draw(st.integers(0, ranks - 1)), ratio=draw(st.sampled_from([0.01, 0.1, 0.5, 1.0])),
        chunk_bytes=draw(st.sampled_from([1, 16, 100, 1 << 20])),
        bits=draw(st.sampled_from(BITS)))
