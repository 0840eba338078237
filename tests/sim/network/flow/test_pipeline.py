"""Closed forms of a pipeline's times against the max-plus recurrence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harp.collectives.ir import Feeds
from harp.collectives.window import Cut
from sim.network.flow.pipeline import EdgeTimes, phase_times
from tests.support.max_plus import Pipe, arrivals

SECONDS = st.integers(0, 20).map(lambda tenths: tenths / 10)


def closed_form_s(pipe: Pipe, level) -> float:
    """End of a phase by the closed form: its bytes at the slowest pace, and what is beside that."""
    count, none = len(pipe.alpha_s), np.zeros(len(pipe.alpha_s))
    pairs = [(feeder, edge) for edge in range(count) for feeder in pipe.before[edge]]
    source, target = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    busy_s = np.array(pipe.busy_s, float)
    times = EdgeTimes(np.array(pipe.alpha_s, float), none, none, busy_s, busy_s)
    found = phase_times(times, np.zeros(count, np.int64), np.ones(1),
                        Feeds(source, target, pipe.lag, np.array(level, np.int64)),
                        Cut(pipe.pieces, pipe.lag), pipe.slots)
    steady_s = pipe.pieces * max(busy_s.max(), found.least_s[0])
    return steady_s + found.latency_s + found.filling_s + found.message_s


def ring(alpha_s, busy_s, pieces: int, slots: int = 8) -> Pipe:
    count = len(alpha_s)
    return Pipe(alpha_s, busy_s, [[(edge - 1) % count] for edge in range(count)], pieces, 1, slots)


def chain(alpha_s, busy_s, pieces: int, slots: int = 8) -> Pipe:
    return Pipe(alpha_s, busy_s, [[edge - 1] if edge else [] for edge in range(len(alpha_s))],
                pieces, 0, slots)


@given(st.integers(2, 6), SECONDS, SECONDS.filter(bool), st.integers(1, 30))
def test_equal_edges_take_what_the_recurrence_says(count, alpha_s, busy_s, pieces):
    for make, level in ((ring, [0] * count), (chain, range(count))):
        pipe = make([alpha_s] * count, [busy_s] * count, pieces)
        assert closed_form_s(pipe, level) == pytest.approx(arrivals(pipe).max())


@given(st.data())
def test_unequal_edges_never_take_longer_than_the_closed_form(data):
    count = data.draw(st.integers(2, 6))
    alpha_s, busy_s = (data.draw(st.lists(SECONDS, min_size=count, max_size=count))
                       for _ in range(2))
    pieces = data.draw(st.integers(1, 30))
    for make, level in ((ring, [0] * count), (chain, range(count))):
        pipe = make(alpha_s, busy_s, pieces)
        assert arrivals(pipe).max() <= closed_form_s(pipe, level) + 1e-9
