"""All-to-alls with counts on host memory, against numpy on whole blocks; every rank is a thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest

from harp.collectives.alltoallv import WAYS, combine, dispatch
from harp.collectives.blocks import Blocks
from harp.lightcc import alltoallv_program as lightcc_blocks
from harp.lightcc.group import GroupError
from harp.lightcc.pieces import PIECE_BYTES
from tests.harp.collectives.test_alltoallv import slices
from tests.harp.lightcc.test_group import PATIENCE_S, group_of, of_all, raw

HOSTS = {1: (0,), 2: (0, 1), 4: (0, 0, 1, 1), 5: (0, 1, 0, 1, 1)}


@pytest.fixture(scope="module", params=sorted(HOSTS))
def group(request):
    with group_of(request.param) as made:
        yield made


def drawn(ranks, most, seed):
    """Blocks of a rank for some ranks of a host, among them empty ones and those of many pieces."""
    random, hosts = np.random.default_rng(seed), np.array(HOSTS[ranks])
    src = np.sort(random.integers(0, ranks, 6 * ranks))
    goal = random.integers(0, hosts.max() + 1, len(src))
    to = (hosts == goal[:, None]) & (random.random((len(src), ranks)) < 0.7)
    return Blocks(src, to, 4 * random.integers(0, most, len(src)) * random.integers(0, 2, len(src)))


def begin(group, make, way, blocks, inputs, sizes):
    plan = make(blocks, way, HOSTS[len(group)], 4)
    outs = [np.full(size // 4, np.nan, "<f4") for size in sizes]
    return outs, [rank.run_blocks(plan, raw(own), raw(out), "float32")
                  for rank, own, out in zip(group, inputs, outs, strict=True)]


def check_dispatched(blocks, sent, outs):
    for rank, out in enumerate(outs):
        for i, part in slices(blocks, blocks.to[:, rank], rank).items():
            source = blocks.src[i]
            wanted = sent[source][slices(blocks, blocks.src == source, source)[i]]
            np.testing.assert_array_equal(out[part], wanted)


def check_combined(blocks, given, outs):
    at = [slices(blocks, blocks.to[:, rank], rank) for rank in range(blocks.ranks)]
    for rank, out in enumerate(outs):
        for i, part in slices(blocks, blocks.src == rank, rank).items():
            if blocks.to[i].any():
                np.testing.assert_array_equal(
                    out[part], sum(given[member][at[member][i]]
                                   for member in np.flatnonzero(blocks.to[i])))


def vectors(sizes, seed):
    random = np.random.default_rng(seed)
    return [random.integers(-99, 99, size // 4).astype("<f4") for size in sizes]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("most", [1, 3, 1000, PIECE_BYTES // 2])
def test_blocks_go_to_their_ranks(group, way, most):
    blocks = drawn(len(group), most, most)
    sent = vectors(blocks.sent_bytes, 1)
    outs, begun = begin(group, dispatch, way, blocks, sent, blocks.came_bytes)
    of_all(begun)
    check_dispatched(blocks, sent, outs)


@pytest.mark.parametrize("way", ["direct", "once-per-host"])
@pytest.mark.parametrize("most", [1, 3, 1000, PIECE_BYTES // 2])
def test_sums_come_back(group, way, most):
    blocks = drawn(len(group), most, most)
    given = vectors(blocks.came_bytes, 2)
    kept = [own.copy() for own in given]
    outs, begun = begin(group, combine, way, blocks, given, blocks.sent_bytes)
    of_all(begun)
    check_combined(blocks, kept, outs)


def test_several_are_under_way_at_once(group):
    work = []
    for seed in range(8):
        blocks = drawn(len(group), 20_000, seed)
        sent = vectors(blocks.sent_bytes, seed)
        work.append((blocks, sent, *begin(group, dispatch, "once-per-host", blocks, sent,
                                          blocks.came_bytes)))
    for blocks, sent, outs, begun in work:
        of_all(begun)
        check_dispatched(blocks, sent, outs)


@pytest.mark.parametrize("most", [1, 40, 100_000])
def test_each_rank_needs_to_know_its_own_counts_only(group, most):
    ranks = len(group)
    random = np.random.default_rng(most)
    counts = random.integers(0, most, (ranks, ranks)) * random.integers(0, 2, (ranks, ranks))
    sent = [random.integers(0, 256, row.sum(), np.uint8) for row in counts]
    outs = [np.zeros(column.sum(), np.uint8) for column in counts.T]
    of_all(rank.alltoallv("all_to_all", sent[i], outs[i], counts[i], counts[:, i])
           for i, rank in enumerate(group))
    parts = [np.split(own, np.cumsum(row)[:-1]) for own, row in zip(sent, counts, strict=True)]
    for i, out in enumerate(outs):
        np.testing.assert_array_equal(out, np.concatenate([parts[k][i] for k in range(ranks)]))


def test_many_ranks_send_directly_without_a_plan_of_all_counts(group, monkeypatch):
    monkeypatch.setattr(lightcc_blocks, "CHOSEN_RANKS", 0)
    test_each_rank_needs_to_know_its_own_counts_only(group, 1000)


@pytest.mark.parametrize("waits", [False, True])
def test_counts_that_disagree_are_one_sentence_at_every_rank(waits):
    with group_of(3) as group, ThreadPoolExecutor(3) as pool:
        counts = np.array([[0, 8, 4], [4, 4, 4], [0, 0, 4]])
        expects = counts.T.copy()
        expects[1, 0] = 6  # of rank 0's 8
        data = [(np.zeros(counts[i].sum(), np.uint8), np.zeros(expects[i].sum(), np.uint8))
                for i in range(3)]

        def call(i):
            with group[i].waiting() if waits else nullcontext():
                begun = group[i].alltoallv("all_to_all_single", *data[i], counts[i], expects[i])
            return str(begun.exception(PATIENCE_S))

        said = set(pool.map(call, range(3)))
        assert len(said) == 1, said
        assert said.pop().endswith("all_to_all_single: ranks do not agree: rank 0 sends 8 B to "
                                   "rank 1, which expects 6 B")
        with pytest.raises(GroupError, match="rank 0 sends 8 B"):
            group[0].barrier().result(PATIENCE_S)


def test_ranks_with_other_blocks_do_not_agree():
    with group_of(2) as group:
        begun = []
        for rank, size in zip(group, (4, 8), strict=True):
            plan = dispatch(Blocks(np.array([0]), np.array([[False, True]]), np.array([size])))
            begun.append(rank.run_blocks(
                plan, np.zeros(size * (rank.rank == 0), np.uint8),
                np.zeros(size * (rank.rank == 1), np.uint8), "float32"))
        said = {str(one.exception(PATIENCE_S)) for one in begun}
        assert len(said) == 1, said
        assert "ranks do not agree: rank 0 calls direct alltoallv of 1 float32" in said.pop()


def test_memory_that_is_not_that_of_the_blocks_is_refused(group):
    plan = dispatch(Blocks.of_counts(np.full((len(group), len(group)), 4)))
    with pytest.raises(ValueError, match="direct alltoallv: 3 B to send, but rank 0's"):
        group[0].run_blocks(plan, np.zeros(3, np.uint8), np.zeros(4, np.uint8), "float32")
