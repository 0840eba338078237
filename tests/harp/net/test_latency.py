"""Least round trips: of a busy host in virtual time, and of this one."""

from __future__ import annotations

import random
import socket
from itertools import count

import pytest

from harp.net.latency import FIRST_ROUNDS, MOST_ROUNDS, least_of_rounds, least_round_trips_s

NEAR, FAR, DEAF = ("near", 1), ("far", 1), ("deaf", 1)


class BusyHost:
    """Answers in virtual time, of a host on which others run for a while again and again.

    While they do, a probe is late by ten times what it takes, as by a scheduler's turn.
    """

    def __init__(self, seed: int, busy_s: float, idle_s: float) -> None:
        self._chance = random.Random(seed)
        self._turns = busy_s, idle_s
        self.now_s, self.asked = self._chance.random() * busy_s, dict.fromkeys((NEAR, FAR, DEAF), 0)

    def ask(self, target: tuple[str, int]) -> float | None:
        self.asked[target] += 1
        if target == DEAF:
            return None
        busy_s, idle_s = self._turns
        taken_s = {NEAR: 10e-6, FAR: 12e-6}[target] * (1 + self._chance.expovariate(10))
        if self.now_s % (busy_s + idle_s) < busy_s:
            taken_s += self._chance.expovariate(1 / 100e-6)
        self.now_s += taken_s
        return taken_s

    def pause(self) -> None:
        self.now_s += self._chance.expovariate(1 / 0.03)


@pytest.mark.parametrize(("busy_s", "idle_s"), [(0.1, 0.03), (0.02, 0.005), (0.4, 0.1)])
def test_nearer_hosts_are_found_on_a_busy_host(busy_s: float, idle_s: float) -> None:
    """It is busy for four fifths of its time, and for longer than a block of rounds takes."""
    for seed in range(30):
        random.seed(seed)  # of the order in which targets are asked
        host = BusyHost(seed, busy_s, idle_s)
        found = least_of_rounds([NEAR, FAR], host.ask, host.pause)
        assert found[NEAR] == pytest.approx(10e-6, rel=0.02)
        assert found[FAR] == pytest.approx(12e-6, rel=0.02)


def test_a_silent_host_is_not_waited_for_again() -> None:
    host = BusyHost(1, 0, 1)
    assert set(least_of_rounds([NEAR, DEAF], host.ask, host.pause)) == {NEAR}
    assert host.asked[DEAF] == 3
    assert host.asked[NEAR] == 2 * FIRST_ROUNDS  # of a host at rest that is enough


def test_rounds_end_though_each_is_nearer_than_the_one_before() -> None:
    times_s = (1e-3 * 0.99 ** number for number in count())
    least_of_rounds([NEAR], lambda _: next(times_s), lambda: None)
    assert next(times_s) == pytest.approx(1e-3 * 0.99 ** MOST_ROUNDS)


def test_an_answer_is_one_whether_somebody_listens_or_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = server.getsockname()
        listened = least_round_trips_s("127.0.0.1", [at])
    refused = least_round_trips_s("127.0.0.1", [at])
    assert min(listened[at], refused[at]) > 0
