"""The hosts of ``harp run``: as a list, in a file, or as a script finds them while a job runs."""

from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 1.0
"""Between two looks; Horovod's driver has as many."""
SCRIPT_S = 60.0


def parse_hosts(text: str) -> list[tuple[str, int]]:
    """Take ``host:slots,host:slots`` apart; without slots it is one.

    >>> parse_hosts("a:4,b")
    [('a', 4), ('b', 1)]
    """
    hosts = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        host, _, slots = part.rpartition(":") if ":" in part else (part, "", "1")
        if not host or not slots.isdigit() or int(slots) < 1:
            raise click.BadParameter(f"{part!r} is no host; write HOST:SLOTS with one slot or more",
                                     param_hint="-H")
        hosts.append((host, int(slots)))
    if not hosts:
        raise click.BadParameter(f"{text!r} names no host; write HOST:SLOTS", param_hint="-H")
    if len({host for host, _ in hosts}) < len(hosts):
        raise click.BadParameter(f"a host stands twice in {text!r}", param_hint="-H")
    return hosts


def read_hostfile(path: Path) -> list[tuple[str, int]]:
    """Read lines ``host slots=N`` or ``host:N``, as Open MPI, MPICH and Horovod have them."""
    lines = [line.partition("#")[0].split() for line in path.read_text().splitlines()]
    return parse_hosts(",".join(words[0] + "".join(
        ":" + word.removeprefix("slots=") for word in words[1:] if word.startswith("slots="))
        for words in lines if words))


class FoundHosts:
    """What a script prints, as lines ``host:slots``; it is run once a second.

    A script that fails, or prints what is no host, changes nothing.

    Args:
        script: is executable.
        slots: of a host without a number.

    """

    def __init__(self, script: Path, slots: int = 1) -> None:
        self._script, self._slots = script, slots
        self._found: list[tuple[str, int]] = []
        self._first = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def __call__(self) -> list[tuple[str, int]]:
        """Give the hosts that there are now."""
        return self._found

    def wait_for(self, slots: int, timeout_s: float) -> list[tuple[str, int]]:
        """Wait until there are so many slots, or the time is over; give the hosts then."""
        for _ in range(max(1, int(timeout_s / SECONDS))):
            if sum(count for _, count in self._found) >= slots:
                break
            self._first.wait(SECONDS)
            self._first.clear()
        return self._found

    def close(self) -> None:
        """Look no more."""
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.is_set():
            try:
                run = subprocess.run([str(self._script)], capture_output=True, text=True,
                                     timeout=SCRIPT_S, check=True, stdin=subprocess.DEVNULL)
                names = [line.strip() for line in run.stdout.splitlines() if line.strip()]
                self._found = parse_hosts(",".join(
                    name if ":" in name else f"{name}:{self._slots}" for name in names))
            except (OSError, subprocess.SubprocessError, click.BadParameter):
                pass
            self._first.set()
            self._ended.wait(SECONDS)
