"""Even routing against routing by chance and against the shares of all subsets."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.alltoallv import combine, dispatch
from harp.collectives.even_routing import copies, even_blocks, wanted_shares
from harp.collectives.symbolic_check import check


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.data())
@settings(max_examples=40, deadline=None)
def test_shares_are_those_of_all_draws(hosts, of_host, each, data):
    ranks, experts = hosts * of_host, hosts * of_host * each
    top_k = data.draw(st.integers(1, min(experts, 4)))
    draws = list(combinations(range(experts), top_k))
    wanted = np.bincount([len({e // each for e in draw if e // each < of_host}) for draw in draws],
                         minlength=of_host + 1) / len(draws)
    assert wanted_shares(experts, top_k, ranks, of_host) == pytest.approx(wanted, abs=1e-9)


def test_copies_of_known_layers():
    assert copies(64, 8, (0, 0, 1, 1)) == (4.0, 1.83, 0.998)
    assert copies(4, 2, (0, 0, 1, 1)) == (1.0, 1.0, 0.833)


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0,) * 3, (0, 1, 2), (0, 0, 0, 1, 1, 1, 2)])
def test_blocks_have_the_bytes_of_tokens_and_copies(hosts):
    size = 1 << 24
    blocks = even_blocks(size, 4 * len(hosts), 3, hosts, 4)
    host = np.array(hosts)
    for make in (dispatch, combine):
        for way in ("direct", "once-per-host"):
            check(make(even_blocks(400, 4 * len(hosts), 3, hosts, 4), way, hosts, 4))
    _, ranks, once = copies(4 * len(hosts), 3, hosts)
    goal = host[blocks.to.argmax(axis=1)]
    own = (blocks.src == 0) & (goal != host[0])
    sent = blocks.nbytes[own]
    assert sent.sum() / size == pytest.approx(once, abs=1e-3)
    assert (sent * blocks.to[own].sum(axis=1)).sum() / size == pytest.approx(ranks, abs=1e-2)
