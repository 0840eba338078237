"""Even routing against routing by chance and against the shares of all subsets."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.alltoallv import combine, dispatch
from harp.collectives.even_routing import Router, copies, even_blocks, wanted_shares
from harp.collectives.symbolic_check import check


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.data())
@settings(max_examples=40, deadline=None)
def test_shares_are_those_of_all_draws(hosts, of_host, each, data):
    ranks, experts = hosts * of_host, hosts * of_host * each
    top_k = data.draw(st.integers(1, min(experts, 4)))
    draws = list(combinations(range(experts), top_k))
    wanted = np.bincount([len({e // each for e in draw if e // each < of_host}) for draw in draws],
                         minlength=of_host + 1) / len(draws)
    assert wanted_shares(Router(experts, top_k), ranks, of_host) == pytest.approx(wanted, abs=1e-9)


def test_copies_of_known_layers():
    assert copies(Router(64, 8), (0, 0, 1, 1)) == (4.0, 1.83, 0.998)
    assert copies(Router(4, 2), (0, 0, 1, 1)) == (1.0, 1.0, 0.833)


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0,) * 3, (0, 1, 2), (0, 0, 0, 1, 1, 1, 2)])
def test_blocks_have_the_bytes_of_tokens_and_copies(hosts):
    size = 1 << 24
    blocks = even_blocks(size, Router(4 * len(hosts), 3), hosts, 4)
    host = np.array(hosts)
    for make in (dispatch, combine):
        for way in ("direct", "once-per-host"):
            check(make(even_blocks(400, Router(4 * len(hosts), 3), hosts, 4), way, hosts, 4))
    _, ranks, once = copies(Router(4 * len(hosts), 3), hosts)
    goal = host[blocks.to.argmax(axis=1)]
    own = (blocks.src == 0) & (goal != host[0])
    sent = blocks.nbytes[own]
    assert sent.sum() / size == pytest.approx(once, abs=1e-3)
    assert (sent * blocks.to[own].sum(axis=1)).sum() / size == pytest.approx(ranks, abs=1e-2)


def drawn_sets(router, ranks, of_host):
    """Ranks of the first host that tokens want, over all choices of groups and experts."""
    size, each = router.experts // router.groups, router.experts // ranks
    found: dict[frozenset[int], float] = {}
    choices = list(combinations(range(router.groups), router.top_groups))
    for groups in choices:
        some = [group * size + number for group in groups for number in range(size)]
        draws = list(combinations(some, router.top_k))
        for draw in draws:
            wanted = frozenset(e // each for e in draw if e // each < of_host)
            found[wanted] = found.get(wanted, 0.0) + 1 / len(choices) / len(draws)
    return found


@pytest.mark.parametrize(("router", "hosts", "of_host"), [
    (Router(8, 2, 4, 2), 2, 2), (Router(16, 3, 4, 2), 2, 4), (Router(16, 2, 8, 1), 2, 4),
    (Router(16, 2, 8, 3), 2, 4), (Router(16, 3, 2, 1), 4, 2), (Router(16, 3, 8, 2), 2, 2)])
def test_limited_routers_want_as_many_ranks_as_all_draws(router, hosts, of_host):
    """By groups of a rank's, of several ranks', and of several hosts'."""
    place = tuple(rank // of_host for rank in range(hosts * of_host))
    wanted = drawn_sets(router, hosts * of_host, of_host)
    blocks = even_blocks(1 << 24, router, place, 1)
    own = (blocks.src == 0) & blocks.to[:, :of_host].any(axis=1)
    sent = blocks.nbytes[own] / (1 << 24)
    many = blocks.to[own].sum(axis=1)
    for m in range(1, of_host + 1):
        assert sent[many == m].sum() == pytest.approx(
            sum(share for some, share in wanted.items() if len(some) == m), abs=1e-5), m


def test_a_gate_that_deals_experts_in_order_stays_on_one_host():
    """As the gate of NVIDIA's benchmarks does: token i has experts 8 i to 8 i + 7."""
    dealt = Router(256, 8, groups=32, top_groups=1)
    assert copies(dealt, tuple(rank // 8 for rank in range(64))) == (7.0, 1.75, 0.875)


def test_groups_that_ranks_would_share_are_refused():
    with pytest.raises(ValueError, match="3 groups of experts are not whole on 4 ranks"):
        even_blocks(400, Router(12, 2, 3, 1), (0, 0, 1, 1))
