"""An allreduce in few bits around a ring, against the plan that the simulator runs."""

from __future__ import annotations

import numpy as np
import pytest

from harp.collectives.few_bits_plan import BITS, CHUNK
from harp.collectives.ir import Buffer
from harp.collectives.registry import make_plan
from harp.lightcc.few_bits_ring import FewBitsRing
from tests.harp.collectives.test_execute import execute
from tests.harp.lightcc.test_group import group_of, of_all
from tests.support.levels import each_once

SIZES = [(1, 300), (2, 1), (2, 3000), (3, 5000), (5, 9 * CHUNK)]


def vectors(ranks, elements):
    return np.random.default_rng([ranks, elements]).normal(size=(ranks, elements)).astype("<f4")


@pytest.mark.parametrize(("size", "bits"), each_once(SIZES[1:], BITS))
def test_results_are_the_plans_bit_for_bit(size, bits):
    ranks, elements = size
    inputs = vectors(ranks, elements)
    plan = make_plan("ring-few-bits", ranks=ranks, nbytes=4 * elements, bits=bits)
    wanted = execute(plan, inputs, seed=1)[0].buffers[Buffer.DATA]
    found = [one.copy() for one in inputs]
    with group_of(ranks) as group:
        of_all(FewBitsRing(rank, elements, bits).allreduce(own)
               for rank, own in zip(group, found, strict=True))
    assert {own.tobytes() for own in found} == {wanted.tobytes()}


@pytest.mark.parametrize(("size", "bits", "average"), each_once(SIZES, BITS, [False, True]))
def test_what_is_lost_is_kept(size, bits, average):
    ranks, elements = size
    inputs, share = vectors(ranks, elements), ranks if average else 1
    given, got = np.zeros(elements), np.zeros(elements)
    errors = [np.zeros(elements, "<f4") for _ in range(ranks)]
    with group_of(ranks) as group:
        made = [FewBitsRing(rank, elements, bits) for rank in group]
        for _ in range(4):
            found = [one.copy() for one in inputs]
            of_all(one.allreduce(own, error, average=average)
                   for one, own, error in zip(made, found, errors, strict=True))
            assert len({own.tobytes() for own in found}) == 1
            given += inputs.sum(axis=0, dtype=float)
            got += found[0].astype(float) * share
    np.testing.assert_allclose(got + np.sum(errors, axis=0), given, atol=2e-4)


def test_each_rank_sends_its_right_neighbour_what_the_plan_says(monkeypatch):
    ranks, elements = 4, 5000
    plan = make_plan("ring-few-bits", ranks=ranks, nbytes=4 * elements, bits=4)
    wanted = [[(int(dst), int(length)) for rows in map(plan.step, range(plan.steps))
               for src, dst, length in zip(rows.src, rows.dst, rows.length, strict=True)
               if src == rank] for rank in range(ranks)]
    sent = [[] for _ in range(ranks)]
    with group_of(ranks) as group:
        for rank in group:
            def noted(call, outs, ins, data, rank=rank, exchange=rank.exchange):
                sent[rank.rank] += [(peer, len(out)) for peer, out in enumerate(outs)
                                    if peer == (rank.rank + 1) % ranks or len(out)]
                return exchange(call, outs, ins, data)
            monkeypatch.setattr(rank, "exchange", noted)
        of_all(FewBitsRing(rank, elements, 4).allreduce(np.ones(elements, "<f4"))
               for rank in group)
    assert sent == wanted


def test_two_rings_of_one_group_sum_at_once():
    rings = [(0, 2), (3, 1)]
    inputs = vectors(4, 3000)
    found = [one.copy() for one in inputs]
    with group_of(4) as group:
        of_all(FewBitsRing(rank, 3000, 8, ring).allreduce(own)
               for rank, own in zip(group, found, strict=True)
               for ring in rings if rank.rank in ring)
    for one, other in rings:
        assert found[one].tobytes() == found[other].tobytes()
        np.testing.assert_allclose(found[one], inputs[one] + inputs[other], atol=0.2)


def test_impossible_sizes_are_refused():
    with group_of(1) as group:
        with pytest.raises(ValueError, match="bits is 3; allowed are 8, 4, 2"):
            FewBitsRing(group[0], 10, 3)
        with pytest.raises(ValueError, match="the error has 9 elements, not 10"):
            FewBitsRing(group[0], 10, 8).allreduce(np.zeros(10, "<f4"), np.zeros(9, "<f4"))
