"""Elements to send, their times and their bytes (harp.lightcc.outer_policy)."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harp.lightcc.outer_policy import OuterPolicy, faster_exchange, split

ROUNDS = st.integers(1, 40).flatmap(lambda every: st.tuples(
    st.just(every), st.integers(1, every), st.integers(0, every - 1)))


@given(ROUNDS)
def test_each_fragment_is_sent_once_a_round_and_mixed_in_after_the_delay(of):
    every, fragments, delay = of
    policy = OuterPolicy("streaming", every, fragments, delay)
    for first in (1, 1 + every):
        sent = [one for step in range(first, first + every) for one in policy.begins(step)]
        assert sorted(sent) == list(range(fragments))
    assert fragments - 1 in policy.begins(every)
    for step in range(1, 3 * every):
        assert policy.ends(step + delay) == policy.begins(step)
    assert not any(policy.ends(step) for step in range(delay + 1))


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50), st.integers(1, 9))
def test_fragments_are_all_parameters_in_their_order_and_nearly_equal(sizes, fragments):
    parts = split(sizes, fragments)
    assert len(parts) == fragments
    assert [i for part in parts for i in part] == list(range(len(sizes)))
    share = sum(sizes) / fragments
    for part in parts:
        assert sum(sizes[i] for i in part) <= share + max(sizes)


def test_messages_are_dense_or_a_few_bits_of_each_chunk():
    assert OuterPolicy("diloco", 30).message_bytes(1000) == 4000
    sparse = OuterPolicy("sparseloco", 30)
    assert sparse.message_bytes(4096) == 4 + 64 * (12 + 2) // 8
    assert sparse.message_bytes(4097) == 2 * sparse.message_bytes(1)
    assert OuterPolicy("diloco", 100, bits=8).message_bytes(513) == 3 * 4 + 513
    assert OuterPolicy("streaming", 30, bits=4).message_bytes(512) == 2 * (4 + 128)
    assert OuterPolicy("diloco", 30, bits=2).message_bytes(256) == 4 + 64
    assert 4 * 4096 / sparse.message_bytes(4096) > 140  # Covenant-72B: 146 times less
    assert OuterPolicy("sparseloco", 30, bits=32, keep=16, chunk=16).message_bytes(16) == 72


def test_what_is_not_sent_is_kept_beside_anchor_and_momentum():
    assert OuterPolicy("local-sgd", 30).state_bytes(10) == 40
    assert OuterPolicy("diloco", 30).state_bytes(10) == 80
    assert OuterPolicy("sparseloco", 30).state_bytes(10) == 80
    assert OuterPolicy("diloco", 30, bits=2).state_bytes(10) == 120


@pytest.mark.parametrize(("given", "sentence"), [
    ({"method": "diloc"}, "method is 'diloc'; did you mean diloco? Allowed are local-sgd, diloco, "
                          "streaming, sparseloco"),
    ({"every": 0}, "every is 0; allowed is 1 or more"),
    ({"every": 2.5}, "every is 2.5; allowed is a whole number"),
    ({"every": "30"}, "every is '30'; allowed is a whole number"),
    ({"method": "streaming", "fragments": 31}, "fragments is 31; allowed is 1 to 30"),
    ({"method": "streaming", "delay": 30}, "delay is 30; allowed is 0 to 29"),
    ({"method": "sparseloco", "keep": 5000}, "keep is 5000; allowed is 1 to 4096"),
    ({"method": "sparseloco", "bits": 3}, "bits is 3; allowed are 2, 4, 8, 32"),
    ({"method": "local-sgd", "bits": 8}, "bits is 8; allowed are 32"),
    ({"method": "diloco", "bits": 16}, "bits is 16; allowed are 2, 4, 8, 32"),
    ({"delay": 1}, "diloco sends all at once and waits for it; fragments and delay are of "
                   "streaming and sparseloco")])
def test_an_impossible_request_is_refused_in_a_sentence(given, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        OuterPolicy(**{"method": "diloco", "every": 30, **given})


@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.floats(1e3, 1e11),
       st.floats(1e6, 1e10), st.floats(0, 0.2))
def test_the_faster_exchange_is_the_one_whose_messages_are_over_first(sites, nbytes, rate, delay):
    """Counted message by message on the line between each two sites, in hops for the ring."""
    site_of = [site for site, hosts in enumerate(sites) for _ in range(hosts)]
    hosts, part_s = len(site_of), 8 * nbytes / len(site_of) / rate
    on_line = Counter((a, b) for a in site_of for b in site_of if a != b)
    direct_s = 2 * (delay + max(on_line.values()) * part_s)
    ring_s = sum(delay + part_s for _ in range(2 * (hosts - 1)))
    if abs(direct_s - ring_s) > 1e-9 * ring_s:
        assert faster_exchange(nbytes, sites, rate, delay) == (
            "ring" if ring_s < direct_s else "direct")


def test_an_exchange_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="exchange is 'rign'; did you mean ring"):
        OuterPolicy("diloco", 2, bits=8, exchange="rign")
    for sites in ([], [2, 0]):
        with pytest.raises(ValueError, match="allowed are sites of 1 host or more"):
            faster_exchange(1e6, sites, 1e9, 0.01)
