"""Guards: one thread at a time, and a close that ends its wait."""

import threading

import pytest

import harp
from harp.net.guard import SLICE_NS, Guard
from tests.harp.net.pairs import PATIENCE_S, pair


def refusal(connection):
    """Wait until another thread uses the connection, and return this one's error."""
    with pytest.raises(harp.HarpError) as caught:
        for _ in iter(lambda: connection.info, None):
            pass
    return str(caught.value)


def test_a_second_thread_gets_the_error_that_the_connection_is_in_use():
    with pair() as (a, b):
        waiting = threading.Thread(target=lambda: b.recv(timeout=PATIENCE_S))
        waiting.start()
        assert "another thread" in refusal(b)
        a.send(b"done")
        waiting.join()
        assert b.info


def test_closing_ends_the_wait_of_another_thread():
    caught = []

    def wait(connection):
        try:
            connection.recv(timeout=PATIENCE_S)
        except harp.Closed as error:
            caught.append(error)

    with pair() as (_, b):
        waiting = threading.Thread(target=wait, args=(b,))
        waiting.start()
        assert refusal(b)
        b.close()
        waiting.join()
    assert len(caught) == 1


def test_a_guard_refuses_a_second_thread_unless_it_is_patient():
    guard, patient = Guard("thing"), Guard("thing", patient=True)
    with guard, pytest.raises(harp.HarpError, match="this thing is in use by another thread"), \
            guard:
        pass
    assert not guard.in_use
    came = []

    def enter():
        with patient:
            came.append("second")

    with patient:
        waiting = threading.Thread(target=enter)
        waiting.start()
        came.append("first")
    waiting.join()
    assert came == ["first", "second"]


def test_a_closed_guard_is_closed_once_and_lets_nobody_in():
    guard, closed = Guard("thing"), []
    guard.close(lambda: closed.append(1))
    guard.close(lambda: closed.append(2))
    assert (closed, guard.closed) == ([1], True)
    with pytest.raises(harp.Closed, match="this thing is closed"), guard:
        pass


def test_a_guard_of_memory_that_is_viewed_stays_and_refuses_further_use():
    def refuse():
        raise BufferError

    guard = Guard("thing")
    guard.leave(lambda: guard.close(refuse))
    assert not guard.closed
    with pytest.raises(harp.Closed):
        guard.check()
    guard.close(lambda: None)
    assert guard.closed


def test_a_wait_ends_when_it_is_ready_or_names_what_did_not_happen():
    guard, asked = Guard("thing"), []
    guard.until(lambda: len(asked) == 3, asked.append, None, "that")
    assert all(0 < ns <= SLICE_NS for ns in asked)
    with pytest.raises(harp.Timeout, match="that did not happen within 0 s"):
        guard.until(lambda: False, asked.append, 0, "that")
