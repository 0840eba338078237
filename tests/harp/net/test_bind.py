"""Binding to source ports that another process may have."""

import socket
from contextlib import ExitStack

import pytest

from harp.net.bind import bind_if_free


def test_a_port_that_is_taken_is_none_and_free_again_when_its_stack_is_left():
    with ExitStack() as stack:
        first = bind_if_free(stack, "127.0.0.1", 0)
        port = first.getsockname()[1]
        assert bind_if_free(stack, "127.0.0.1", port) is None
        assert first.type == socket.SOCK_DGRAM
    assert first.fileno() == -1
    with ExitStack() as stack:
        assert bind_if_free(stack, "127.0.0.1", port).getsockname() == ("127.0.0.1", port)


def test_an_address_of_another_host_is_an_error():
    with ExitStack() as stack, pytest.raises(OSError, match="Cannot assign"):
        bind_if_free(stack, "192.0.2.1", 0)
