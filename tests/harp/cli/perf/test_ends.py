"""Both ends of a measurement over kernel TCP: a peer that goes, and a message that is not due."""

import socket
import struct
import threading

import click
import pytest

from harp.cli.perf.ends import Run, TcpEnd


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = socket.create_connection(listening.getsockname())
        return here, listening.accept()[0]


def test_a_tcp_peer_that_goes_ends_the_run():
    here, there = tcp_pair()
    end = TcpEnd([here], threading.Event())
    there.close()
    try:
        with pytest.raises(click.ClickException, match="a TCP connection ended: "):
            end.finish(end.begin(Run("ping", 8, 4, 2)))
    finally:
        end.close()


def test_a_message_over_tcp_that_is_not_due_is_noticed():
    here, there = tcp_pair()
    end = TcpEnd([here], threading.Event())
    there.sendall(struct.pack("<Q", 1))  # the first message is number 0
    try:
        with there, pytest.raises(click.ClickException, match="an unexpected message"):
            end.finish(end.begin(Run("receive", 8, 4, 2)))
    finally:
        end.close()
