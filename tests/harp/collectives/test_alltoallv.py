"""All-to-alls with counts and their sums: proved, and run with real bytes."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.alltoallv import WAYS, combine, dispatch
from harp.collectives.blocks import Blocks
from harp.collectives.channels import memory_channels
from harp.collectives.execute import Execution
from harp.collectives.ir import Buffer
from harp.collectives.symbolic_check import PlanError, check
from tests.harp.collectives.test_symbolic_check import MUTATIONS, altered
from tests.support.levels import draws


@st.composite
def routed(draw, max_ranks=6, hosts=None):
    """Blocks for ranks of one host each, with the hosts: some have no bytes, some no ranks."""
    ranks = draw(st.integers(1, max_ranks))
    host = np.sort(draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks)))
    host = np.array(draw(st.permutations(host.tolist())))
    src, to, units = [], [], []
    for rank in range(ranks):
        for _ in range(draw(st.integers(0, 4))):
            goal = draw(st.sampled_from(host.tolist()))
            chosen = draw(st.lists(st.booleans(), min_size=ranks, max_size=ranks))
            src.append(rank)
            to.append((host == goal) & np.array(chosen))
            units.append(draw(st.sampled_from([0, 1, 2, 5])))
    made = Blocks(np.array(src, np.int64), np.array(to, bool).reshape(len(src), ranks),
                  4 * np.array(units, np.int64))
    return made, host


def plan_of(kind, blocks, way, host):
    return (dispatch if kind == "dispatch" else combine)(blocks, way, host, 4)


KINDS = [("dispatch", way) for way in WAYS] + [("combine", "direct"), ("combine", "once-per-host")]


@pytest.mark.parametrize(("kind", "way"), KINDS)
@given(case=routed())
@settings(max_examples=40, deadline=None)
def test_each_way_is_proved(kind, way, case):
    check(plan_of(kind, case[0], way, case[1]))


@pytest.mark.parametrize("mutation", MUTATIONS)
@given(case=routed(max_ranks=5), kind=st.sampled_from(KINDS), data=st.data())
@settings(max_examples=20, deadline=None)
def test_no_single_fault_goes_unseen(mutation, case, kind, data):
    plan = plan_of(kind[0], case[0], kind[1], case[1])
    busy = [step for step in range(plan.steps) if len(plan.step(step))]
    if not busy:
        return
    step = data.draw(st.sampled_from(busy))
    row = data.draw(st.integers(0, len(plan.step(step)) - 1))
    with pytest.raises(PlanError):
        check(altered(plan, step, lambda rows: mutation(rows, row, 4)))


def test_a_sum_of_two_sources_blocks_is_refused():
    """Blocks of the same place at different sources are different bytes."""
    blocks = Blocks(np.array([0, 1]), np.array([[0, 0, 1, 1]] * 2, bool), np.array([4, 4]))
    plan = combine(blocks, "once-per-host", [0, 1, 2, 2])

    def swap(rows):
        first = rows.src_offset.copy()
        at = np.flatnonzero(rows.op == 1)
        first[at] = 4 - first[at]
        return type(rows)(*(first if name == "src_offset" else getattr(rows, name)
                            for name in rows.__dataclass_fields__))
    with pytest.raises(PlanError, match="adds bytes that belong elsewhere"):
        check(altered(plan, 0, swap))


def run(plan, inputs):
    async def go():
        channels = memory_channels(plan.ranks)
        ranks = [Execution(plan, rank, "<f4", channels[rank].__getitem__)
                 for rank in range(plan.ranks)]
        for rank, own in zip(ranks, inputs, strict=True):
            rank.buffers[Buffer.DATA][:4 * len(own)] = own.view(np.uint8)
        await asyncio.gather(*(rank.run() for rank in ranks))
        return [rank.buffers[Buffer.OUT].view("<f4") for rank in ranks]
    return asyncio.run(go())


def slices(blocks, rank_of_each, rank):
    """The parts of a rank's memory, block by block."""
    at, found = 0, {}
    for i in np.flatnonzero(rank_of_each):
        found[i] = slice(at, at := at + blocks.nbytes[i] // 4)
    return found


@pytest.mark.parametrize("way", WAYS)
@given(case=routed(), seed=st.integers(0, 99))
@settings(max_examples=draws(40), deadline=None)
def test_blocks_go_to_their_ranks_and_come_back_as_sums(way, case, seed):
    blocks, host = case
    random, ranks = np.random.default_rng(seed), range(blocks.ranks)
    sent = [random.integers(-9, 9, blocks.sent_bytes[rank] // 4).astype("<f4") for rank in ranks]
    outs = run(dispatch(blocks, way, host, 4), sent)
    at_source = [slices(blocks, blocks.src == rank, rank) for rank in ranks]
    at_target = [slices(blocks, blocks.to[:, rank], rank) for rank in ranks]
    for rank in ranks:
        for i, part in at_target[rank].items():
            assert (outs[rank][part] == sent[blocks.src[i]][at_source[blocks.src[i]][i]]).all()
    if way == "hierarchical":
        return
    back = [random.integers(-9, 9, blocks.came_bytes[rank] // 4).astype("<f4") for rank in ranks]
    sums = run(combine(blocks, way, host, 4), back)
    for rank in ranks:
        for i, part in at_source[rank].items():
            members = np.flatnonzero(blocks.to[i])
            wanted = sum(back[member][at_target[member][i]] for member in members)
            assert len(members) == 0 or (sums[rank][part] == wanted).all()


def crossing(plan, host):
    return sum(int(phase.bytes_per_edge[host[phase.src] != host[phase.dst]].sum())
               for phase in plan.phases())


@given(case=routed())
@settings(max_examples=40, deadline=None)
def test_once_per_host_a_block_crosses_once_however_many_want_it(case):
    blocks, host = case
    goal = np.array([host[row.argmax()] for row in blocks.to] or [0])[:len(blocks.src)]
    away = (host[blocks.src] != goal) & blocks.to.any(axis=1)
    once = int(blocks.nbytes[away].sum())
    copies = int((blocks.nbytes * blocks.to.sum(axis=1))[away].sum())
    for make in (dispatch, combine):
        assert crossing(make(blocks, "once-per-host", host), host) == once
        assert crossing(make(blocks, "direct", host), host) == copies
    assert crossing(dispatch(blocks, "hierarchical", host), host) == copies


@given(st.integers(1, 5), st.data())
@settings(max_examples=draws(40), deadline=None)
def test_counts_are_torchs_uneven_splits(ranks, data):
    counts = np.array(data.draw(st.lists(st.lists(
        st.integers(0, 3), min_size=ranks, max_size=ranks), min_size=ranks, max_size=ranks)))
    blocks = Blocks.of_counts(counts, 4)
    sent = [np.arange(counts[rank].sum(), dtype="<f4") + 100 * rank for rank in range(ranks)]
    parts = [np.split(own, np.cumsum(row)[:-1]) for own, row in zip(sent, counts, strict=True)]
    for way in WAYS:
        outs = run(dispatch(blocks, way, np.arange(ranks) // 2, 4), sent)
        for rank in range(ranks):
            wanted = np.concatenate([parts[other][rank] for other in range(ranks)])
            assert (outs[rank][:len(wanted)] == wanted).all()


def test_an_impossible_plan_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="the count from rank 1 to rank 0 is -2; allowed is 0"):
        Blocks.of_counts([[0, 1], [-2, 0]])
    with pytest.raises(ValueError, match=r"counts have the shape \(2, 3\)"):
        Blocks.of_counts([[0, 1, 2], [1, 0, 2]])
    two = Blocks.of_counts(np.ones((2, 2)))
    with pytest.raises(ValueError, match="there is no way 'drect'; did you mean 'direct'"):
        dispatch(two, "drect")
    with pytest.raises(ValueError, match="sums have no hierarchical way"):
        combine(two, "hierarchical")
    with pytest.raises(ValueError, match="hosts has 3 ranks, and the blocks 2"):
        dispatch(two, "direct", [0, 0, 1])
    both = Blocks(np.array([0]), np.array([[True, True]]), np.array([4]))
    with pytest.raises(ValueError, match="block 0, of rank 0, is for ranks of several hosts"):
        dispatch(both, "once-per-host", [0, 1])
