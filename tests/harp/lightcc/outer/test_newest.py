"""The newest state: whole and right, from whichever peer has it."""

from __future__ import annotations

import hashlib
import socket
import threading

import numpy as np
import pytest

pytest.importorskip("torch")


from harp.lightcc.outer.newest import StateServer, take_newest
from tests.harp.lightcc.outer.test_elastic_peers import PATIENCE_S


@pytest.fixture
def servers():
    made = []

    def serve(number, state, token="token"):
        server = StateServer("127.0.0.1", token, lambda: 7)
        with server.changing(number, (0,), [state]):
            pass
        made.append(server)
        return server
    yield serve
    for server in made:
        server.shutdown()
        server.server_close()


def state_of(seed, nbytes=3_000_000):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def test_the_newest_state_is_taken_whoever_has_it(servers):
    peers = [servers(4, state_of(1)), servers(6, state_of(2)), servers(-1, state_of(3)),
             servers(9, state_of(4), token="another")]
    addresses = {number: peer.address for number, peer in enumerate(peers)}
    head, state = take_newest(addresses, "token", 2, PATIENCE_S)
    assert (head.number, head.steps) == (6, 7)
    assert state == state_of(2).tobytes()
    assert take_newest({}, "token", 6, PATIENCE_S) is None
    with pytest.raises(TimeoutError, match="no peer could give a state of a round after 6 within"):
        take_newest(addresses, "token", 6, 0.0)


class Between:
    """Stands before a peer: passes on some bytes of each state, or changes one."""

    def __init__(self, to, most=None, flip=None):
        self.to, self.most, self.flip = to, most, flip
        self.passed = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = list(self.listener.getsockname())
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with client, socket.create_connection(tuple(self.to)) as peer:
                peer.sendall(client.makefile("rb").readline())
                stream = peer.makefile("rb")
                client.sendall(stream.readline())
                while chunk := bytearray(stream.read1(1 << 16)):
                    at = -1 if self.flip is None else self.flip - self.passed
                    if 0 <= at < len(chunk):
                        chunk[at] ^= 1
                    if self.most is not None:
                        chunk = chunk[:self.most - self.passed]
                    self.passed += len(chunk)
                    if not chunk:
                        break
                    client.sendall(chunk)


def test_another_peer_finishes_a_transfer_that_one_began(servers):
    whole = state_of(5)
    near = Between(servers(1, whole).address, most=1_000_000)
    far = Between(servers(1, whole).address)
    _, state = take_newest({0: near.address, 1: far.address}, "token", 0, PATIENCE_S)
    assert state == whole.tobytes()
    assert near.passed + far.passed == len(whole) or near.passed == 0
    near.listener.close()
    far.listener.close()


def test_a_state_that_came_wrong_is_taken_from_another_peer(servers):
    whole = state_of(6)
    bad = Between(servers(1, whole).address, flip=2_000_000)
    good = servers(1, whole)
    _, state = take_newest({0: bad.address, 1: good.address}, "token", 0, PATIENCE_S)
    assert hashlib.sha256(state).digest() == hashlib.sha256(whole).digest()
    bad.listener.close()
