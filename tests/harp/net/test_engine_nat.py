"""harp.Engine behind a NAT that forgets: the listening end follows its peer to another port."""

from __future__ import annotations

import os
import select
import socket
import threading

import harp

PATIENCE_S = 30


class Nat(threading.Thread):
    """Passes datagrams on, from a port of its own for each that a client sends from."""

    def __init__(self, server: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.front = self._socket()
        self.back: dict[tuple[str, int], socket.socket] = {}
        self.forgotten: list[socket.socket] = []
        self.lock = threading.Lock()
        self.stops = False

    @staticmethod
    def _socket() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind(("127.0.0.1", 0))
        return made

    def forget(self) -> None:
        """Give every client another port; what comes to the old ones is lost."""
        with self.lock:
            self.forgotten += self.back.values()
            self.back = {client: self._socket() for client in self.back}

    def end(self) -> None:
        """Stop, and close all sockets."""
        self.stops = True
        self.join()
        for each in [self.front, *self.back.values(), *self.forgotten]:
            each.close()

    def run(self) -> None:
        while not self.stops:
            with self.lock:
                ways = {way: client for client, way in self.back.items()}
            for way in select.select([self.front, *ways], [], [], 0.01)[0]:
                data, sender = way.recvfrom(65536)
                if way in ways:
                    self.front.sendto(data, ways[way])
                    continue
                with self.lock:
                    if sender not in self.back:
                        self.back[sender] = self._socket()
                    self.back[sender].sendto(data, self.server)


def test_a_nat_that_forgets_its_clients_does_not_end_a_connection() -> None:
    with harp.Engine("udp", address="127.0.0.1") as far_engine, \
            harp.Engine("udp", address="127.0.0.1") as near_engine:
        listener = far_engine.listen()
        handle = bytearray(bytes(listener.handle))
        host, port = listener.handle.addresses[0].split(":")
        at = handle.index(bytes.fromhex("ffff7f000001")) - 12
        nat = Nat((host, int(port)))
        handle[at:at + 2] = nat.front.getsockname()[1].to_bytes(2, "little")
        nat.start()
        near = near_engine.connect(bytes(handle), timeout=PATIENCE_S)
        far = listener.accept(PATIENCE_S)
        message = os.urandom(300_000)
        for turn in range(4):
            near.send(message)
            assert bytes(far.recv(timeout=PATIENCE_S)) == message, turn
            far.send(message[::-1])
            assert bytes(near.recv(timeout=PATIENCE_S)) == message[::-1], turn
            nat.forget()
        far.send(message)  # nothing was sent to it since: a sign of life shows where the peer is
        assert bytes(near.recv(timeout=PATIENCE_S)) == message
        near.close()
        near_engine.close(linger=1)
        nat.end()
