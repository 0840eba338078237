"""One sentence at all ranks, whatever the order in which they find failures, speak and leave.

Ranks are `Failure` objects over a network of the test's, in time that only timers move: a seed is a
run, bit by bit.
"""

from __future__ import annotations

import asyncio
import json
import random
import selectors
from collections import defaultdict

import pytest

from harp.lightcc.failure import (
    BEGIN_S,
    DIFFERS,
    FAILED,
    LATE,
    LEAVE_S,
    SYMPTOM,
    Failure,
    GroupError,
)

TIMEOUT_S, PATIENCE_S = 60.0, 5.0
NOTICED_S = 1.0
"""After which a killed rank's connections have ended; its last messages have come before."""


class VirtualTime(selectors.SelectSelector):
    """A store that never sleeps: each wait ends at once as timed out."""

    now_s = 0.0

    def select(self, timeout=None):
        assert timeout is not None, "all ranks wait for ever"
        self.now_s += timeout
        return []


def in_virtual_time(work):
    clock = VirtualTime()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.now_s
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


class Rank:
    """A rank and what it sends; messages to a peer come in order, each after a delay."""

    def __init__(self, ranks, number, delay_s):
        self.ranks, self.number, self.delay_s = ranks, number, delay_s
        self.last_s = defaultdict(float)
        self.gone, self.heard_all = False, asyncio.Event()
        self.stopped = False

    def start(self, ranks):
        self.failure = Failure(self.number, ranks, TIMEOUT_S, PATIENCE_S,
                               asyncio.get_running_loop())
        self.failure.calls_begun = 1
        self.failure.attach(self)

    def end(self, why):
        """No receive waits."""

    async def send_news(self, peer, kind, news):
        await asyncio.sleep(self.delay_s() / 2)  # others are before it
        if self.ranks[peer].heard_all.is_set():
            raise GroupError
        loop = asyncio.get_running_loop()
        when = max(self.last_s[peer], loop.time() + self.delay_s())
        self.last_s[peer] = when
        if not self.gone:
            loop.call_at(when, self.deliver, peer, kind, news)

    def deliver(self, peer, kind, news):
        hearer = self.ranks[peer]
        if not hearer.gone and not hearer.stopped:
            hearer.failure.take_news(self.number, kind, news)

    async def read_all_of(self, peer):
        await self.ranks[peer].heard_all.wait()

    async def live(self, find=None, at_s=0.0):
        """Find a failure, hear the sentence, and leave at once."""
        await asyncio.sleep(at_s)
        if find and not self.gone:
            self.failure.report(*find)
        await self.failure.known.wait()
        if not self.gone:
            await self.failure.close()
            last_s = max(self.last_s.values(), default=0.0)
            asyncio.get_running_loop().call_at(last_s, self.heard_all.set)
        return self.failure.sentence

    async def die(self, at_s):
        await asyncio.sleep(at_s)
        self.gone = True
        await asyncio.sleep(NOTICED_S)
        self.heard_all.set()
        for rank in self.ranks:
            if not rank.gone:
                rank.failure.report(f"rank {self.number} is gone")


def make_ranks(count, delay_s=lambda: 0.01):
    ranks = []
    for number in range(count):
        ranks.append(Rank(ranks, number, delay_s))
    for rank in ranks:
        rank.start(count)
    return ranks


async def hear_all(waiting):
    return await asyncio.wait_for(asyncio.gather(*waiting), 100)


def test_the_deciding_rank_announces_the_failure_before_it_leaves():
    async def run():
        ranks = make_ranks(3, lambda: 0.3)
        return await hear_all([ranks[0].live(("of 0", FAILED)), ranks[1].live(("of 1", FAILED)),
                               ranks[2].live(("rank 0 is gone", FAILED), at_s=0.1)])
    assert in_virtual_time(run()) == ["of 0"] * 3


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_all_ranks_hear_one_of_the_sentences(count):
    async def run(seed):
        chance = random.Random(seed)
        ranks = make_ranks(count, lambda: chance.random() * LEAVE_S / 3)
        finders = chance.sample(range(count), chance.randint(1, count))
        return await hear_all(rank.live(
            (f"of {rank.number}", FAILED) if rank.number in finders else None,
            chance.choice([0.0, chance.random()])) for rank in ranks)
    for seed in range(200):
        said = in_virtual_time(run(seed))
        assert len(set(said)) == 1, seed
        assert said[0].startswith("of ")


@pytest.mark.parametrize("count", [3, 4, 5])
def test_ranks_agree_though_one_is_killed_while_it_announces_the_failure(count):
    async def run(seed):
        chance = random.Random(seed)
        ranks = make_ranks(count, lambda: chance.random() * NOTICED_S / 4)
        killed = chance.choice([0, chance.randrange(count)])
        finder = chance.randrange(count)
        said, _ = await asyncio.gather(
            hear_all(rank.live(("a reason", FAILED) if rank.number == finder else None)
                     for rank in ranks if rank.number != killed),
            ranks[killed].die(chance.random()))
        return said
    for seed in range(200):
        assert len(set(in_virtual_time(run(seed)))) == 1, seed


def test_a_silent_rank_is_waited_for_only_so_long():
    async def run():
        ranks = make_ranks(3)
        ranks[0].stopped = True
        said = await hear_all([ranks[1].live(), ranks[2].live(("of 2", FAILED))])
        return said, asyncio.get_running_loop().time()
    said, took_s = in_virtual_time(run())
    assert said == ["of 2"] * 2
    assert took_s < 3 * PATIENCE_S


def test_a_reason_goes_before_what_follows_from_it():
    async def run(reason):
        ranks = make_ranks(3)
        return await hear_all([ranks[0].live(("a wrong size", SYMPTOM)), ranks[1].live(),
                               ranks[2].live(reason, at_s=3.0)])
    assert in_virtual_time(run(("do not agree", FAILED))) == ["do not agree"] * 3
    assert in_virtual_time(run(None)) == ["a wrong size"] * 3


@pytest.mark.parametrize(("calls", "sentence"), [
    ([7, 7, 6, 7], "rank 2 did not come"), ([6, 7, 8, 6], "ranks 0, 3 did not come"),
    ([6, 7, 5, 7], "rank 2 did not come"),  # rank 0 waits for it in its call 6
    ([7, 7, 7, 7], "though all ranks came")])
def test_a_missing_rank_is_named_though_others_came_at_different_times(calls, sentence):
    async def run():
        ranks = make_ranks(4)
        for rank, begun in zip(ranks, calls, strict=True):
            rank.failure.calls_begun = begun
        return await hear_all([rank.live(("7 barrier", LATE) if rank.number == 1 else None)
                               for rank in ranks])
    assert in_virtual_time(run()) == [f"call 7, barrier: not over after 60 s, {sentence}"] * 4


@pytest.mark.parametrize("late", [0, 2, 3])
@pytest.mark.parametrize(("late_s", "named"), [(0.8 * BEGIN_S, True), (10.0, False)])
def test_ranks_that_differ_are_named_with_one_that_begins_the_call_late(late, late_s, named):
    calls = ["of 8", "of 9", "of 8", "of 8"]

    async def begin(rank):
        await asyncio.sleep(late_s if rank.number == late else 0.0)
        rank.failure.begin_call(calls[rank.number])

    async def run():
        ranks = make_ranks(4)
        finder = next(rank for rank in (0, 2) if rank != late)
        report = json.dumps([2, calls[finder], {finder: calls[finder], 1: "of 9"}])
        said = await hear_all(
            [rank.live((report, DIFFERS) if rank.number == finder else None, 0.1)
             for rank in ranks] + [begin(rank) for rank in ranks])
        return said[:len(ranks)]
    (sentence,) = set(in_virtual_time(run()))
    like = [rank for rank in (0, 2, 3) if named or rank != late]
    assert f"ranks {', '.join(map(str, like[:-1]))} and {like[-1]} call of 8" in sentence
    assert "rank 1 calls of 9" in sentence
