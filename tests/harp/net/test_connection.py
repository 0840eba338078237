"""Connections: messages that arrive, wait or are lost, and how they end."""

import gc
import threading

import numpy as np
import pytest

import harp.net.engine
from tests.harp.net.pairs import PATIENCE_S, PORTS, engine, pair, pattern


@pytest.mark.parametrize("progress", ["thread", "inline"])
@pytest.mark.parametrize("port", PORTS)
def test_messages_of_all_sizes_arrive_both_ways(port, progress):
    sizes = [0, 1, 127, 1408, 4096, 100_000, 3_000_000]
    with pair(port, {"progress": progress}) as (a, b):
        for sender, receiver in ((a, b), (b, a)):
            into = [np.zeros(size, np.uint8) for size in sizes]
            posted = [receiver.post(buffer) for buffer in into]
            sent = [sender.send(pattern(size, size)) for size in sizes]
            for size, receive, buffer in zip(sizes, posted, into, strict=True):
                assert receive.wait(PATIENCE_S) == size
                assert np.array_equal(buffer, pattern(size, size))
            assert [one.wait(PATIENCE_S) for one in sent] == sizes
            assert [one.message for one in sent] == list(range(len(sizes)))


def test_a_buffer_that_is_posted_before_the_end_is_known_gets_what_came():
    with engine("mem", progress="manual") as only:
        listener = only.listen()
        near = only.start(listener.handle)
        far = listener.accept(PATIENCE_S)
        near.connected.wait(PATIENCE_S)
        sent = near.send(b"last words")
        while not sent.done():  # before a buffer is posted for it
            only.drive()
        near.close()
        while only.drive():
            pass
        posted = far.post(bytearray(10))  # the engine knows of the end, Python does not
        assert posted.wait(PATIENCE_S) == 10
        with pytest.raises(harp.Closed):
            far.recv(timeout=PATIENCE_S)


def test_recv_and_recv_into():
    with pair() as (a, b):
        a.send(b"first")
        a.send(b"second")
        with b.recv(100, PATIENCE_S) as first:
            assert (bytes(first), first.message, len(first)) == (b"first", 0, 5)
        into = bytearray(10)
        assert b.recv_into(into, PATIENCE_S) == 6
        assert into == b"second\0\0\0\0"


def test_anything_with_a_buffer_is_sent():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    with pair() as (a, b):
        for data in (b"bytes", bytearray(b"array"), memoryview(b"view"), array):
            a.send(data)
            assert bytes(b.recv(timeout=PATIENCE_S)) == bytes(memoryview(data).cast("B"))
        a.send(array)
        got = np.frombuffer(b.recv(timeout=PATIENCE_S), np.float32).reshape(3, 4)
        assert np.array_equal(got, array)


def test_more_messages_than_may_be_under_way_wait_for_room():
    count = 1000
    with pair() as (a, b):
        into = bytearray(8)
        receiver = threading.Thread(target=lambda: [b.recv_into(into, PATIENCE_S)
                                                    for _ in range(count)])
        receiver.start()
        for i in range(count):
            a.send(i.to_bytes(8, "little"), PATIENCE_S)
        a.flush(PATIENCE_S)
        receiver.join()
        assert int.from_bytes(into, "little") == count - 1


def test_receive_returns_early_messages_and_then_why_the_peer_closed():
    with pair() as (a, b):
        done = a.send(b"last words")
        b_got = b.recv(timeout=PATIENCE_S)
        done.wait(PATIENCE_S)
        a.close()
        assert bytes(b_got) == b"last words"
        with pytest.raises(harp.Closed, match="all messages through") as caught:
            b.recv(timeout=PATIENCE_S)
        assert caught.value.reason is harp.Reason.DONE
        assert isinstance(caught.value, ConnectionError)
        assert b.closed
        with pytest.raises(harp.Closed):
            b.send(b"nobody hears this")
        with pytest.raises(harp.Closed, match="this connection is closed"):
            a.send(b"neither")


def test_messages_that_were_under_way_are_not_silently_lost():
    with pair() as (a, b):
        pending = a.send(bytes(100_000))  # the other end has no buffer for it
        a.close()
        with pytest.raises(harp.Closed, match="this end closed"):
            pending.wait(PATIENCE_S)
        with pytest.raises(harp.Closed) as caught:
            b.recv(timeout=PATIENCE_S)
        assert caught.value.reason is harp.Reason.UNDER_WAY


def test_a_message_that_is_too_long_ends_the_connection():
    with pair() as (a, b):
        a.send(bytes(100))
        for connection in (b, a):
            with pytest.raises(harp.Broken) as caught:
                connection.recv(10, PATIENCE_S)
            assert caught.value.reason is harp.Reason.TOO_LONG


def test_nobody_answers():
    with engine("udp") as a, engine("udp") as b:
        handle = b.listen().handle
        b.close()
        with pytest.raises(harp.PeerGone) as caught:
            a.connect(handle, dead_after=1)
        assert caught.value.reason in (harp.Reason.NO_ANSWER, harp.Reason.REFUSED)
        with pytest.raises(harp.Timeout):
            a.connect(handle, timeout=0.05)


def test_a_timeout_loses_nothing():
    with pair() as (a, b):
        into = bytearray(3)
        with pytest.raises(harp.Timeout, match=r"within 0\.01 s"):
            b.recv_into(into, 0.01)
        with pytest.raises(harp.Timeout, match="repeat that call"):
            b.recv_into(bytearray(3), 0.01)
        a.send(b"one")
        assert b.recv_into(into, PATIENCE_S) == 3
        assert into == b"one"
        with pytest.raises(TimeoutError):
            b.recv(3, 0.01)
        a.send(b"two")
        assert bytes(b.recv(3, PATIENCE_S)) == b"two"
    with engine() as alone, pytest.raises(harp.Timeout):
        alone.listen().accept(0.01)


def test_wrong_use_is_refused():
    with pair() as (a, b):
        with pytest.raises(BufferError):
            b.recv_into(b"read-only")
        with pytest.raises(TypeError, match="streamed"):
            b.stream()
        with pytest.raises(ValueError, match="drafts=frames"):
            a.draft(10)
        huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (5,), (2,))
        with pytest.raises((ValueError, BufferError)):
            a.send(huge)  # not contiguous
        assert not a.connected.wait(0)


def test_forgotten_sessions_are_closed():
    with engine() as a, engine() as b:
        listener = b.listen()
        near = a.connect(listener.handle, timeout=PATIENCE_S)
        far = listener.accept(PATIENCE_S)
        del near
        gc.collect()
        with pytest.raises(harp.Closed):
            far.recv(timeout=PATIENCE_S)
