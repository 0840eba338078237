"""Membership of rounds in which peers come and go."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.harp.lightcc.outer.test_elastic_peers import PATIENCE_S

pytest.importorskip("torch")


from harp.lightcc.outer.meeting import Meeting
from harp.lightcc.store import MemoryStore


def test_a_rank_outside_the_counted_result_is_late():
    store = MemoryStore()
    one, other = (Meeting(store, [name], 0.0, 0.0) for name in "ab")
    assert one.found(1)
    assert one.gather(1, 0).numbers == (0,)
    assert other.gather(1, 0) is None
    assert one.settle(1, 0)
    assert not other.settle(1, 1)
    assert other.gather(1, 1) is None


def test_peers_have_numbers_in_the_order_in_which_they_came_and_know_all_addresses():
    store = MemoryStore()
    peers = [Meeting(store, [name, 1], 0.0, 0.0) for name in "abc"]
    assert [one.number for one in peers] == [0, 1, 2]
    assert peers[1].others() == {0: ["a", 1], 2: ["c", 1]}


def gathered(peers, *of):
    """Have peers come to an attempt at once."""
    with ThreadPoolExecutor(len(peers)) as pool:
        begun = [pool.submit(one.gather, *of) for one in peers]
        return [one.result(PATIENCE_S) for one in begun]


def test_all_that_come_have_one_list_and_the_group_that_they_had_in_common():
    store = MemoryStore()
    peers = [Meeting(store, [name], PATIENCE_S, PATIENCE_S) for name in "abc"]
    assert all(one.found(3) for one in peers)
    assert gathered(peers, 0, 0, "same") == [((0, 1, 2), "same")] * 3
    assert all(one.settle(0, 0) for one in peers)
    assert peers[0].has_result(0)
    with ThreadPoolExecutor(3) as pool:
        begun = [pool.submit(one.gather, 1, 0, group)
                 for one, group in zip(peers, ("same", "same", "other"), strict=True)]
        assert {one.result(PATIENCE_S) for one in begun} == {((0, 1, 2), "")}


def test_a_peer_that_died_is_not_waited_for_and_one_that_says_so_is():
    store = MemoryStore()
    one, other, dead = (Meeting(store, [name], PATIENCE_S, PATIENCE_S) for name in "abc")
    for peer in (one, other, dead):
        assert peer.found(3)
    for peer in (one, other):
        peer.forget(dead.number)
    assert gathered([one, other], 0, 0) == [((0, 1), "")] * 2
    assert one.settle(0, 0)
    late = Meeting(store, ["d"], PATIENCE_S, PATIENCE_S)
    assert not late.found(3)
    late.announce()
    late.join([0, 1], "")
    assert gathered([one, other, late], 1, 0) == [((0, 1, 3), "")] * 3
