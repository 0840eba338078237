"""Buffers of harp.Connection: frames arrived or to be sent, viewed without a copy."""

import gc
import os

import numpy as np
import pytest

import harp
from tests.harp.net.pairs import PATIENCE_S, pair, pattern


def streamed(port="mem", frames=256, **near):
    return pair(port, near=near, far={"streamed": frames})


# ---- Received frame by frame ----


@pytest.mark.parametrize("port", ["mem", "udp", "tcp"])
def test_a_streamed_message_comes_as_views_of_its_frames(port):
    with streamed(port) as (a, b):
        for size in (0, 1, 5000, 2_000_000):
            a.send(pattern(size, size))
            got = np.zeros(size, np.uint8)
            stream = b.stream(PATIENCE_S)
            for chunk in stream:
                view = np.frombuffer(chunk, np.uint8)
                assert not view.flags.writeable
                got[chunk.offset:chunk.offset + len(chunk)] = view
            assert np.array_equal(got, pattern(size, size))
            assert stream.size == size


def test_a_message_longer_than_the_frames_lent_arrives_when_frames_are_given_back():
    with streamed(frames=4) as (a, b):
        a.send(pattern(1_000_000))
        total = 0
        for chunk in b.stream(PATIENCE_S):
            with chunk:
                total += len(chunk)
        assert total == 1_000_000


def test_views_of_a_frame_are_the_same_memory():
    with streamed() as (a, b):
        a.send(np.arange(10, dtype=np.int64))
        chunk = next(b.stream(PATIENCE_S))
        one, other = np.frombuffer(chunk, np.int64), np.frombuffer(memoryview(chunk), np.int64)
        assert np.shares_memory(one, other)
        assert list(one) == list(range(10))
        assert chunk.views >= 2
        del one, other
        assert chunk.views == 0


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch knows no others
def test_torch_wraps_a_frame_and_a_message():
    torch = pytest.importorskip("torch")
    with streamed() as (a, b):
        a.send(np.arange(10, dtype=np.float32))
        chunk = next(b.stream(PATIENCE_S))
        b.send(np.arange(10, dtype=np.float32))
        for buffer in (chunk, a.recv(timeout=PATIENCE_S)):
            tensor = torch.frombuffer(buffer, dtype=torch.float32)
            assert tensor.sum() == 45
            assert tensor.data_ptr() == np.frombuffer(buffer, np.float32).ctypes.data


def test_a_frame_that_is_viewed_is_not_given_back():
    with streamed() as (a, b):
        a.send(b"hold me")
        chunk = next(b.stream(PATIENCE_S))
        view = np.frombuffer(chunk, np.uint8)
        with pytest.raises(BufferError, match="1 views of this buffer are in use"):
            chunk.release()
        for close in (b.close, b._engine.close):
            with pytest.raises(BufferError, match="drop them first"):
                close()
        assert bytes(view) == b"hold me"  # and all goes on
        a.send(b"more")
        del view
        chunk.release()
        chunk.release()
        assert chunk.released
        with pytest.raises(ValueError, match="given back"):
            memoryview(chunk)
        assert [bytes(one) for one in b.stream(PATIENCE_S)] == [b"more"]


def test_a_view_keeps_its_frame_when_everything_else_is_forgotten():
    with streamed() as (a, b):
        a.send(pattern(100))
        view = np.frombuffer(next(b.stream(PATIENCE_S)), np.uint8)
        gc.collect()
        for i in range(50):
            a.send(pattern(100, i))
            for chunk in b.stream(PATIENCE_S):
                chunk.release()
        assert np.array_equal(view, pattern(100))
        del view


def test_contexts_are_left_with_views_in_use_which_stay_good():
    with streamed() as (a, b):
        a.send(b"good")
        with next(b.stream(PATIENCE_S)) as chunk:
            view = np.frombuffer(chunk, np.uint8)
        assert chunk.released
        with pytest.raises(ValueError, match="given back"):
            memoryview(chunk)
        with b:
            pass
        with pytest.raises(harp.Closed):
            b.send(b"no more")
    assert bytes(view) == b"good"
    del view, b, chunk
    gc.collect()
    with pytest.raises(harp.Closed):
        a.recv(timeout=PATIENCE_S)


def test_frames_of_messages_that_nobody_reads_come_back():
    with streamed(frames=8) as (a, b):
        for _ in range(30):
            a.send(pattern(200_000))
            stream = b.stream(PATIENCE_S)
            next(stream).release()  # and no more of it
        a.send(b"last")
        assert [bytes(chunk) for chunk in b.stream(PATIENCE_S)] == [b"last"]
        with pytest.raises(ValueError, match="later message"):
            next(stream)


def test_frames_are_given_back_by_other_threads():
    from concurrent.futures import ThreadPoolExecutor

    with streamed(frames=8) as (a, b), ThreadPoolExecutor(4) as pool:
        a.send(pattern(3_000_000))
        sums = []
        for chunk in b.stream(PATIENCE_S):
            sums.append(pool.submit(lambda held: int(np.frombuffer(held, np.uint8).sum()), chunk))
            del chunk
        assert sum(one.result() for one in sums) == int(pattern(3_000_000).sum())


def test_a_child_of_fork_cannot_view_frames_of_its_parent():
    with streamed() as (a, b):
        a.send(b"the parent's")
        chunk = next(b.stream(PATIENCE_S))
        child = os.fork()
        if not child:
            try:
                memoryview(chunk)
            except BufferError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert bytes(chunk) == b"the parent's"


# ---- Sent from frames ----


@pytest.mark.parametrize("port", ["mem", "udp", "tcp"])
def test_a_message_is_written_where_it_is_sent_from(port):
    with pair(port, near={"drafts": 512}) as (a, b):
        into = np.zeros(300_000, np.uint8)
        for size in (0, 1, 3000, 300_000):
            posted = b.post(into)
            with a.draft(size, PATIENCE_S) as draft:
                for buffer in draft:
                    np.frombuffer(buffer, np.uint8)[:] = \
                        pattern(size, 1)[buffer.offset:buffer.offset + len(buffer)]
                sent = a.send(draft)
            assert posted.wait(PATIENCE_S) == size == sent.wait(PATIENCE_S)
            assert np.array_equal(into[:size], pattern(size, 1))


def test_write_puts_bytes_across_frames():
    with pair("udp", near={"drafts": 64}) as (a, b):
        draft = a.draft(10_000, PATIENCE_S)
        draft.write(pattern(10_000))
        draft.write(b"\1\2\3", offset=a.segment - 1)
        with pytest.raises(ValueError, match="do not fit"):
            draft.write(b"four", offset=9_997)
        a.send(draft)
        expected = pattern(10_000)
        expected[a.segment - 1:a.segment + 2] = [1, 2, 3]
        got = b.recv(timeout=PATIENCE_S)
        assert np.array_equal(np.frombuffer(got, np.uint8), expected)


def test_drafts_run_out_and_come_back():
    with pair("udp", near={"drafts": 8}) as (a, b):
        size = 8 * a.segment
        for i in range(20):
            draft = a.draft(size, PATIENCE_S)
            with pytest.raises(harp.Timeout):
                a.draft(1, 0)
            draft.write(pattern(size, i))
            a.send(draft)
            assert np.array_equal(np.frombuffer(b.recv(timeout=PATIENCE_S), np.uint8),
                                  pattern(size, i))
        with a.draft(size, PATIENCE_S):
            pass  # unsent
        a.draft(size, PATIENCE_S).release()
        with pytest.raises(ValueError, match="drafts=8"):
            a.draft(size + 1)


def test_a_draft_that_somebody_may_still_write_is_not_sent():
    with pair(near={"drafts": 64}) as (a, b):
        draft = a.draft(10, PATIENCE_S)
        view = memoryview(next(iter(draft)))
        with pytest.raises(BufferError):
            a.send(draft)
        view.release()
        a.send(draft)
        with pytest.raises(ValueError, match="already"):
            a.send(draft)
        with pytest.raises(ValueError, match="given back"):
            draft.write(b"late")
        with pytest.raises(ValueError, match="another connection's"):
            b.send(a.draft(1))
