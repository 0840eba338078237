"""Heartbeats while a group is made: the dead are found, and nobody else is called dead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harp.lightcc.heartbeat import SILENT_TURNS, Heartbeat
from harp.lightcc.store import MemoryStore

MAKING, DEAD, ABSENT, READY_AGO = "making", "dead", "absent", "ready"
STATES = st.lists(st.sampled_from([MAKING, DEAD, ABSENT, READY_AGO]), min_size=2, max_size=9)


def begin(states):
    """Give the heartbeats of ranks that are in these states when the first of them is found."""
    store = MemoryStore()
    ranks = [Heartbeat(rank, len(states), store) for rank in range(len(states))]
    for rank, state in zip(ranks, states, strict=True):
        if state != ABSENT:
            rank.beat()
        if state == READY_AGO:
            rank.be_ready()
    return store, ranks


def take_turns(ranks, states, turns):
    """Let all ranks that make the group take turns; give those that were called dead."""
    return {dead for _ in range(turns) for rank, state in zip(ranks, states, strict=True)
            if state == MAKING and (dead := rank.take_turn()) is not None}


@given(STATES)
def test_the_living_find_a_dead_rank_and_call_nobody_else_dead(states):
    _, ranks = begin(states)
    found = take_turns(ranks, states, 2 * SILENT_TURNS)
    assert all(states[rank] == DEAD for rank in found)
    assert bool(found) == (DEAD in states and MAKING in states)


@given(STATES, st.data())
def test_ranks_that_come_late_or_become_ready_are_not_dead(states, data):
    _, ranks = begin(states)
    for _ in range(3):
        take_turns(ranks, states, SILENT_TURNS - 1)
        for number, state in enumerate(states):
            if state == DEAD:
                ranks[number].beat()  # it was slow
            elif state == ABSENT and data.draw(st.booleans()):
                states[number] = MAKING
            elif state == MAKING and data.draw(st.booleans()):
                ranks[number].be_ready()
                states[number] = READY_AGO
    assert not take_turns(ranks, states, 1)


def test_a_rank_waits_for_as_many_keys_as_there_are_ranks():
    class Counting(MemoryStore):
        asked = 0

        def has(self, key):
            self.asked += 1
            return super().has(key)
    store = Counting()
    ranks = [Heartbeat(rank, 100, store) for rank in range(0, 100, 7)]
    for rank in ranks:
        rank.beat()
    for rank in ranks:
        rank.take_turn()
    assert store.asked == 100


def test_a_rank_is_ready_although_the_store_has_gone():
    class Gone(MemoryStore):
        def set(self, key, value):
            raise ConnectionError(key)
    Heartbeat(0, 2, Gone()).be_ready()
