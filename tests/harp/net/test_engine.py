"""harp.Engine: connections in Python over each port, their errors, forks and threads."""

import contextlib
import doctest
import gc
import os
import threading
import time

import numpy as np
import pytest

import harp
import harp.net.engine
from lab.namespace import why_unusable
from lab.veth import veth_pair
from tests.support import ROOT

PORTS = {"udp": {"address": "127.0.0.1"}, "tcp": {"address": "127.0.0.1"}, "mem": {}}
PATIENCE_S = 30


def engine(port="mem", **options):
    return harp.Engine(port, **PORTS[port], **options)


@contextlib.contextmanager
def pair(port="mem", engine_options=None, *, near=None, far=None):
    """Two engines and a connection between them: (the connecting end, the listening end)."""
    options = engine_options or {}
    with engine(port, **options) as a, engine(port, **options) as b:
        with b.listen(**far or {}) as listener:
            one = a.connect(listener.handle, timeout=PATIENCE_S, **near or {})
            other = listener.accept(PATIENCE_S)
        yield one, other


def pattern(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


# ---- Messages ----


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


def test_an_engine_that_is_driven_by_hand():
    with engine("mem", progress="manual") as only:
        listener = only.listen()
        near = only.start(listener.handle)
        far = listener.accept(PATIENCE_S)
        near.connected.wait(PATIENCE_S)
        near.send(b"by hand")
        assert bytes(far.recv(timeout=PATIENCE_S)) == b"by hand"
        while only.drive():
            pass


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


@pytest.mark.parametrize("port", ["udp", "tcp"])
def test_several_paths_carry_a_connection_and_can_be_looked_at(port):
    with engine(port, locals=4) as a, engine(port, locals=4) as b:
        listener = b.listen(paths=4)
        one = a.connect(listener.handle, timeout=PATIENCE_S, paths=4)
        other = listener.accept(PATIENCE_S)
        into = np.zeros(1_000_000, np.uint8)
        other.post(into)
        one.send(pattern(1_000_000)).wait(PATIENCE_S)
        assert len(one.paths) == one.info.paths == 4
        assert len({path.local for path in one.paths}) == 4
        assert one.info.counters["data_sent"] > 0
        assert other.info.counters["placed"] > 0
        assert one.info.segment == one.segment > 1000
        assert one.info.peer.removeprefix("tcp:").startswith("127.0.0.1:")


def test_an_engine_with_several_ports_and_one_with_faults():
    ports = [harp.Port("mem"),
             harp.Port("udp", address="127.0.0.1", mtu=1500, faults="drop=5%,seed=3")]
    with harp.Engine(ports) as both, engine("udp") as other:
        assert len(both.lines) == 3
        assert both.lines[2].startswith("chaos of seed 3 over udp: ")
        with both.listen() as listener:
            assert len(listener.handle.addresses) == 2
            near = other.connect(listener.handle, timeout=PATIENCE_S)
            far = listener.accept(PATIENCE_S)
        into = np.zeros(500_000, np.uint8)
        posted = near.post(into)
        far.send(pattern(500_000))
        posted.wait(PATIENCE_S)
        assert np.array_equal(into, pattern(500_000))
        assert far.info.counters["data_again"] > 0
    with pytest.raises(harp.OpenError, match='did you mean "drop"'):
        harp.Engine(harp.Port("mem", faults="drip=5%"))


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
@pytest.mark.parametrize("port", ["udp", "tcp", "xdp"])
def test_two_namespaces(port):
    with veth_pair() as (a, b):
        with b.space.entered():
            far_engine = harp.Engine(port, interface=b.device, address=b.ipv4)
        with a.space.entered():
            near_engine = harp.Engine(port, interface=a.device, address=a.ipv4)
            with near_engine, far_engine:
                listener = far_engine.listen()
                near = near_engine.connect(listener.handle, timeout=PATIENCE_S)
                far = listener.accept(PATIENCE_S)
                into = np.zeros(300_000, np.uint8)
                posted = far.post(into)
                near.send(pattern(300_000)).wait(PATIENCE_S)
                posted.wait(PATIENCE_S)
                assert np.array_equal(into, pattern(300_000))


# ---- Handles ----


def test_a_handle_travels_as_bytes_and_hides_its_secret():
    with engine("udp") as a, a.listen() as listener:
        handle = listener.handle
        data = handle.to_bytes()
        assert len(data) <= 128
        assert harp.Handle.from_bytes(data) == handle
        assert hash(harp.Handle(data)) == hash(handle)
        assert handle.secret in data
        assert handle.secret.hex() not in repr(handle)
        with a.connect(data, timeout=PATIENCE_S):
            pass


@pytest.mark.parametrize("data", [b"", bytes(104), b"\xff" * 104, bytes(200)])
def test_bytes_that_are_no_handle_are_refused(data):
    with pytest.raises(ValueError, match="handle"):
        harp.Handle(data)


# ---- Errors ----


def test_errors_say_what_is_allowed():
    with pytest.raises(ValueError, match="port is 'sctp'; there are udp, tcp, mem, xdp"):
        harp.Engine("sctp")
    with pytest.raises(ValueError, match="progress is 'magic'; there are thread, inline, manual"):
        engine(progress="magic")
    with pytest.raises(ValueError, match="'nowhere' is no address"):
        harp.Engine("udp", address="nowhere")
    with pytest.raises(ValueError, match="1 to 16 ports, not 0"):
        harp.Engine([])
    with pytest.raises(TypeError, match="set them in the Port"):
        harp.Engine(harp.Port("mem"), mtu=9000)
    with pytest.raises(harp.OpenError, match="frames") as caught:
        engine(frames=0)
    assert caught.value.errno == 22
    assert isinstance(caught.value, OSError)
    with pytest.raises(harp.OpenError, match=r"192\.0\.2\.1"):
        harp.Engine("udp", address="192.0.2.1")
    with pytest.raises(harp.OpenError, match='no fault "drip"; did you mean "drop"'):
        engine(faults="drip=1%")
    with engine() as a:
        with pytest.raises(ValueError, match="1 s at least"):
            a.listen(dead_after=0.5)
        with pytest.raises(ValueError, match="congestion is 'cubic'; there are swift, fixed"):
            a.listen(congestion="cubic")
        with pytest.raises(harp.OpenError, match="paths is 0: 1 to 64"):
            a.listen(paths=0)
        with pytest.raises(harp.OpenError, match="18000000000000000000: 1 s"):
            a.listen(dead_after=18e9)
        with pytest.raises(harp.OpenError, match="4294967295: at most 1048576"):
            a.listen(streamed=2**32 - 1, drafts=1)
        with pytest.raises(harp.OpenError, match="more than the 4096 frames"):
            a.listen(streamed=1, drafts=2**32 - 1)


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


# ---- Threads, signals, ends ----


def test_everything_closes_with_its_engine_and_twice_is_once():
    with engine() as a:
        listener = a.listen()
        near = a.connect(listener.handle, timeout=PATIENCE_S)
        far = listener.accept(PATIENCE_S)
        a.close()
        a.close()
        near.close()
        listener.close()
        for use in (a.listen, lambda: near.send(b""), lambda: far.info, listener.accept):
            with pytest.raises(harp.Closed):
                use()
        assert a.closed
        assert near.closed
        assert "closed" in repr(near)


def test_forgotten_sessions_are_closed():
    with engine() as a, engine() as b:
        listener = b.listen()
        near = a.connect(listener.handle, timeout=PATIENCE_S)
        far = listener.accept(PATIENCE_S)
        del near
        gc.collect()
        with pytest.raises(harp.Closed):
            far.recv(timeout=PATIENCE_S)


def test_counters_are_removed_with_their_engine():
    one = engine()
    path = one.stats_path
    assert os.path.exists(path)  # noqa: PTH110
    one.close()
    assert not os.path.exists(path)  # noqa: PTH110


# ---- The manual ----


def test_the_manual_does_what_it_says():
    done = doctest.testfile(str(ROOT / "docs" / "use" / "python.md"), module_relative=False)
    assert done.failed == 0
    assert done.attempted > 20
    assert doctest.testmod(harp.net.engine).failed == 0


def test_a_slower_clock_makes_times_last_longer_outside():
    """Five milliseconds on the way, each way, by a clock that goes twenty times slower."""
    port = harp.Port("udp", address="127.0.0.1", faults="delay=5ms")
    with harp.Engine(port, slower=20) as engine:
        listener = engine.listen()
        began_s = time.monotonic()
        near = engine.connect(listener.handle)
        assert time.monotonic() - began_s >= 2 * 20 * 5e-3
        near.send(b"x").wait()
        assert 10e6 <= near.paths[0].state["least_ns"] < 100e6
