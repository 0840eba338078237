"""Completions: memory that is handed over, and results before and after the end."""

import gc

import numpy as np
import pytest

import harp
from tests.harp.net.pairs import PATIENCE_S, pair, pattern


def test_memory_that_is_handed_over_is_kept_alive():
    with pair() as (a, b):
        done = a.send(pattern(2_000_000, 5))  # nobody else holds it
        into = np.zeros(2_000_000, np.uint8)
        posted = b.post(into)
        gc.collect()
        posted.wait(PATIENCE_S)
        assert np.array_equal(into, pattern(2_000_000, 5))
        done.wait(PATIENCE_S)
        held = bytearray(10)
        b.post(held)
        with pytest.raises(BufferError):
            held.extend(b"it may not move")
    held.extend(b"now it may")


def test_a_completion_knows_the_size_and_the_number_of_its_message():
    with pair() as (a, b):
        posted = [b.post(bytearray(10)) for _ in range(2)]
        assert [one.kind for one in posted] == ["receiving"] * 2
        assert not posted[0].settled
        with pytest.raises(harp.Timeout, match="receiving is not over yet"):
            posted[0].result()
        sent = [a.send(b"one"), a.send(b"four")]
        assert [one.wait(PATIENCE_S) for one in posted] == [3, 4]
        assert [one.wait(PATIENCE_S) for one in sent] == [3, 4]
        assert [one.message for one in (*posted, *sent)] == [0, 1, 0, 1]
        assert all(one.done() and one.settled and one.memory is None for one in (*posted, *sent))
        assert posted[1].result() == 4  # again and again


def test_a_completion_of_a_connection_that_ended_raises_why():
    with pair() as (a, b):
        posted = b.post(bytearray(10))
        a.close()
        for ask in (lambda: posted.wait(PATIENCE_S), posted.result):
            with pytest.raises(harp.Closed) as caught:
                ask()
            assert caught.value.reason is harp.Reason.DONE
        assert posted.done()
