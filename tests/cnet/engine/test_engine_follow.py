"""Connections follow another revision of their plan while messages are under way."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import harp
from lab.namespace import why_unusable
from lab.veth import End, veth_pair

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
PATIENCE_S = 30
FIRST, SECOND = (61300, 61301), (61300, 61407)


class Pair:
    """A connection of two paths whose UDP ports are a plan's."""

    def __init__(self, near: harp.Engine, far: harp.Engine, a: End, b: End) -> None:
        self.a, self.b = a, b
        listener = far.listen(paths=2)
        with a.space.entered():
            self.near = near.connect(listener.handle, paths=2, timeout=PATIENCE_S,
                                     flows=self.flows(FIRST))
        self.far = listener.accept(timeout=PATIENCE_S)

    def flows(self, ports: tuple[int, ...]) -> list[tuple[str, str]]:
        return [(f"{self.a.ipv4}:{port}", f"{self.b.ipv4}:61000") for port in ports]

    def follow(self, ports: tuple[int, ...]) -> int:
        with self.a.space.entered():
            return self.near.follow(self.flows(ports))

    def sources(self) -> list[int]:
        return [int(path.local.rpartition(":")[2]) for path in self.near.paths]

    def send(self, message: bytes) -> harp.Completion:
        return self.near.send(message)


@contextmanager
def pair(kind: str = "udp") -> Iterator[Pair]:
    with veth_pair() as (a, b):
        with b.space.entered():
            far = harp.Engine("udp", address=f"{b.ipv4}:61000")
        with a.space.entered():
            near = harp.Engine(kind, interface=a.device, address=a.ipv4)
        with far, near:
            yield Pair(near, far, a, b)


@pytest.mark.parametrize("kind", ["udp", "xdp"])
def test_paths_move_to_the_ports_of_a_revision_and_lose_nothing(kind: str) -> None:
    with pair(kind) as made:
        messages = [os.urandom(4 << 20) for _ in range(3)]
        sent = made.send(messages[0])
        assert made.follow(SECOND) == 1
        posted = bytes(made.far.recv(4 << 20, PATIENCE_S))
        sent.wait(PATIENCE_S)
        assert posted == messages[0]
        assert made.sources() == list(SECOND)
        for ports, message in zip((FIRST, SECOND), messages[1:], strict=True):
            assert made.follow(ports) == 1
            assert made.follow(ports) == 0
            sent = made.send(message)
            assert bytes(made.far.recv(4 << 20, PATIENCE_S)) == message
            sent.wait(PATIENCE_S)
        remotes = [int(path.remote.rpartition(":")[2]) for path in made.far.paths]
        assert remotes == list(SECOND)


def test_a_port_that_is_taken_leaves_its_path_where_it_is() -> None:
    with pair() as made:
        with made.a.space.entered():
            other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with other:
            other.bind((made.a.ipv4, SECOND[1]))
            with pytest.warns(RuntimeWarning, match=r"not as planned: .*61407 cannot be had"):
                assert made.follow(SECOND) == 0
        assert made.sources() == list(FIRST)
        sent = made.send(b"still here")
        assert bytes(made.far.recv(timeout=PATIENCE_S)) == b"still here"
        sent.wait(PATIENCE_S)


def test_a_file_that_is_no_revision_is_refused() -> None:
    with pair() as made:
        with pytest.raises(ValueError, match="1 flows are no revision of a plan of 2"):
            made.follow(FIRST[:1])
        with pytest.raises(ValueError, match="made without the flows of a plan"):
            made.far.follow(made.flows(FIRST))
        assert made.sources() == list(FIRST)
