"""Tokens and the ranks of their experts: every choice arrives, once for each host."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from harp.angelptm.tokens import MOST_OF_A_HOST, Places, chunk_bounds, within_capacity
from harp.collectives.alltoallv import dispatch


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.data())
@settings(max_examples=80, deadline=None)
def test_a_token_is_in_one_block_for_each_host_that_wants_it(hosts, group, of_a_rank, data):
    places = Places(hosts * group * of_a_rank, tuple(i // group for i in range(hosts * group)))
    chosen = data.draw(arrays.arrays(np.int64, st.tuples(st.integers(0, 9), st.integers(1, 4)),
                                     elements=st.integers(-1, places.experts - 1)))
    tokens, rows = places.sort(chosen)
    assert rows.sum() == len(tokens)
    kinds = np.repeat(np.arange(len(rows)), rows)
    wanted = {(token, tuple(sorted({int(e) // of_a_rank for e in own
                                    if e >= 0 and e // of_a_rank // group == host})))
              for token, own in enumerate(chosen) for host in range(hosts)}
    assert {(int(token), tuple(np.flatnonzero(places.members[kind]).tolist()))
            for token, kind in zip(tokens, kinds, strict=True)} == {
        pair for pair in wanted if pair[1]}


def test_hosts_of_many_ranks_have_a_block_for_each_rank():
    ranks = MOST_OF_A_HOST + 1
    places = Places(ranks, (0,) * ranks)
    assert (places.members == np.eye(ranks, dtype=bool)).all()
    tokens, rows = places.sort(np.array([[0, 8], [8, 3]]))
    assert tokens.tolist() == [0, 1, 0, 1]
    assert rows.tolist() == [1, 0, 0, 1, 0, 0, 0, 0, 2]
    blocks = places.blocks(np.stack([rows] * ranks), 4)
    assert dispatch(blocks, "once-per-host", places.hosts).nbytes == 16


@given(st.integers(0, 30), st.integers(1, 6), st.integers(0, 5), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_first_choices_have_room_before_second_ones(tokens, experts, capacity, seed):
    random, top_k = np.random.default_rng(seed), min(2, experts)
    chosen = np.array([random.permutation(experts)[:top_k] for _ in range(tokens)],
                      np.int64).reshape(tokens, top_k)
    kept, served = chosen.copy(), [0] * experts
    for choice in range(top_k):
        for token in range(tokens):
            expert = chosen[token, choice]
            if served[expert] >= capacity:
                kept[token, choice] = -1
            served[expert] += 1
    assert (within_capacity(chosen, experts, capacity) == kept).all()


def test_chunks_cover_all_tokens():
    assert chunk_bounds(7, 3) == [(0, 2), (2, 4), (4, 7)]
    assert chunk_bounds(1, 2) == [(0, 0), (0, 1)]
