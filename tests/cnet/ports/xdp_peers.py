"""Processes with a port of the C core in them: tests/cnet/ports/xdp_peer.c, spoken to."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
from typing import TYPE_CHECKING

from lab.c_programs import build, library
from tests.support import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from lab.veth import End


WAIT_MS = 10_000


def build_peer(factory: pytest.TempPathFactory) -> Path:
    return build(factory.mktemp("xdp") / "xdp_peer", ["tests/cnet/ports/xdp_peer.c",
                                                      str(library())])


def numbers(line: str) -> dict[str, int]:
    """Return the numbers in a line of words and numbers, by the word before each."""
    return {name: int(value) for name, value in re.findall(r"(\w+) (\d+)(?!\S)", line)}


class Peer:
    """A port at one end of a veth pair; a context manager that closes it and counts its frames."""

    def __init__(self, program: Path, end: End, *words: str, kind: str = "xdp",
                 before: tuple[str, ...] = ()) -> None:
        self.process = end.space.start(*before, program, kind, end.device, *words,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
        self.opened = self._read()
        self.line = ""
        if self.opened.startswith("open "):
            self.locals = self.opened.split()[3:]
            self.payload = int(self.opened.split()[2])
            self.line = self._read()

    def __enter__(self) -> Peer:
        assert self.line, self.opened
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self.process.poll() is None:
            self.close()

    def _read(self) -> str:
        line = self.process.stdout.readline().strip()
        if not line:
            raise AssertionError(f"the peer ended: {self.process.stderr.read()}")
        return line

    def tell(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def do(self, line: str) -> str:
        self.tell(line)
        return self._read()

    def hop(self, to: str, local: int = 0) -> int:
        return numbers(self.do(f"hop {to} {local}"))["hop"]

    def send(self, hop: int, count: int, size: int, how: str = "send") -> None:
        assert self.do(f"{how} {hop} {count} {size}") == f"sent {count}"

    def receive(self, count: int, ms: int = WAIT_MS) -> dict[str, int]:
        return numbers(self.do(f"receive {count} {ms}"))

    def states(self) -> dict[str, int]:
        return numbers(self.do("states"))

    def close(self) -> None:
        """Close the port; every frame must be back, and the sanitizers content."""
        states = numbers(self.do("close"))
        assert states["FREE"] == sum(states.values()), states
        assert self.process.wait(timeout=PATIENCE_S) == 0, self.process.stderr.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=PATIENCE_S)


def pattern(number, size):
    """A datagram as xdp_peer writes them."""
    return struct.pack("<II", number, size) + bytes(
        (number * 7 + i + (i >> 8) * 13) & 0xFF for i in range(8, size))


def own(end, family=4, port=0):
    return f"local={end.ipv4}:{port}" if family == 4 else f"local=[{end.ipv6}]:{port}"


def meet(x, y):
    """Send until the neighbours know each other; the first ones go by the kernel."""
    for here, there in ((x, y), (y, x)):
        hop = here.hop(there.locals[0])
        assert hop == 0
        here.send(0, 1, 100)
        assert there.receive(1)["received"] == 1
        here.do("tend 1")


def ethernet_socket(end: End) -> socket.socket:
    """Open a socket that sends and receives whole Ethernet frames."""
    with end.space.entered():
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        raw.bind((end.device, 0))
    return raw
