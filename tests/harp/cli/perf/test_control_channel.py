"""The control channel of ``harp perf``: over sockets and over a HARP connection."""

import socket
from contextlib import contextmanager

import pytest

from harp.cli.perf.control_channel import LONGEST, Gone, Lines, Messages, RemoteError
from tests.harp.net.pairs import pair


@contextmanager
def lines():
    ends = [Lines(end) for end in socket.socketpair()]
    yield ends
    for end in ends:
        end.close()


@contextmanager
def messages():
    with pair() as ends:
        yield [Messages(end) for end in ends]


@pytest.mark.parametrize("channel", [lines, messages])
def test_dictionaries_are_heard_in_their_order(channel):
    with channel() as (near, far):
        near.tell(run={"size": 8}, tcp=True)
        near.tell(end=True)
        far.tell(ready="é\n")
        assert [far.hear(), far.hear()] == [{"run": {"size": 8}, "tcp": True}, {"end": True}]
        assert near.hear() == {"ready": "é\n"}


@pytest.mark.parametrize("channel", [lines, messages])
def test_an_end_that_says_nothing_or_goes_is_named(channel):
    with channel() as (near, far):
        with pytest.raises(Gone, match=r"the other end said nothing for 0\.01 s"):
            near.hear(0.01)
        far.close()
        with pytest.raises(Gone, match="the other end has gone"):
            near.hear()


@pytest.mark.parametrize("channel", [lines, messages])
def test_the_other_end_s_error_is_raised_here(channel):
    with channel() as (near, far):
        far.tell(error="no port 7", wrong_use=True)
        with pytest.raises(RemoteError, match="the other end: no port 7") as caught:
            near.hear()
        assert (caught.value.why, caught.value.is_wrong_use) == ("no port 7", True)


@pytest.mark.parametrize("said", [b"hello\n", b"[1]\n", b"\xff\n", b"x" * LONGEST])
def test_a_stranger_is_no_harp_perf(said):
    near, far = socket.socketpair()
    with far:
        channel = Lines(near)
        far.sendall(said)
        with pytest.raises(Gone, match="the other end is not `harp perf`"):
            channel.hear()
        channel.close()
