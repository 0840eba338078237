"""The hosts of ``harp run``: as a list, in a file, or as a script finds them while a job runs."""

from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING

import click

from harp.cli.run.processes import ending
from harp.nearest import nearest_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SECONDS = 1.0
"""Between two looks; Horovod's driver has as many."""
SCRIPT_S = 60.0
OTHER_WORDS = ("max_slots", "max-slots", "username", "user", "binding", "ifname")
"""What Open MPI and MPICH have beside a host's slots; they change nothing here."""


def parse_hosts(text: str) -> list[tuple[str, int]]:
    """Take ``host:slots,host:slots`` apart; without slots it is one.

    >>> parse_hosts("a:4,b")
    [('a', 4), ('b', 1)]
    """
    try:
        hosts = [_read_host(part) for part in (piece.strip() for piece in text.split(",")) if part]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="-H") from None
    if not hosts:
        raise click.BadParameter(f"{text!r} names no host; write HOST:SLOTS", param_hint="-H")
    if len({host for host, _ in hosts}) < len(hosts):
        raise click.BadParameter(f"a host stands twice in {text!r}", param_hint="-H")
    return hosts


def _read_host(part: str) -> tuple[str, int]:
    host, _, slots = part.rpartition(":") if ":" in part else (part, "", "1")
    if not host or not slots.isdecimal() or int(slots) < 1:
        raise ValueError(f"{part!r} is no host; write HOST:SLOTS with one slot or more")
    return host, int(slots)


def read_hostfile(path: Path) -> list[tuple[str, int]]:
    """Read lines ``host slots=N`` or ``host:N``, as Open MPI, MPICH and Horovod have them."""
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError:
        raise click.UsageError(f"--hostfile {path} cannot be read: it is not text") from None
    hosts: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            host, slots = _read_host_line(words)
            if host in hosts:
                raise ValueError(f"{host} stands in a line before")
        except ValueError as error:
            raise click.UsageError(f"{path}:{number}: {error}") from None
        hosts[host] = slots
    if not hosts:
        raise click.UsageError(f"--hostfile {path} names no host; write lines HOST slots=N")
    return list(hosts.items())


def _read_host_line(words: Sequence[str]) -> tuple[str, int]:
    host, slots = words[0], None
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name in OTHER_WORDS:
            continue
        if name != "slots":
            near = nearest_name(name, ("slots", *OTHER_WORDS))
            hint = f"; did you mean {near}={value}?" if near else ""
            raise ValueError(f"{word!r} is not known; possible is HOST slots=N{hint}")
        if not value.isdecimal() or int(value) < 1:
            raise ValueError(f"{word!r} is no number of slots; possible is slots=N with one or "
                             "more")
        slots = int(value)
    return (host, slots) if slots else _read_host(host)


class FoundHosts:
    """What a script prints, as lines ``host:slots``; it is run once a second.

    A script that fails, or prints what is no host, changes nothing; the first time is told.

    Args:
        script: is executable.
        slots: of a host without a number.

    """

    def __init__(self, script: Path, slots: int = 1) -> None:
        self._script, self._slots = script, slots
        self._found: list[tuple[str, int]] = []
        self._has_warned = False
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
                self._found = self._ask_script()
            except OSError as error:
                self._warn_once(f"cannot run: {error.strerror}")
            except subprocess.TimeoutExpired:
                self._warn_once(f"took more than {SCRIPT_S:g} s")
            except subprocess.CalledProcessError as error:
                said = (error.stderr.strip().splitlines() or [""])[-1]
                self._warn_once(f"ended with {ending(error.returncode)}" + f": {said}" * bool(said))
            except click.BadParameter as error:
                self._warn_once(f"printed what names no host: {error.message}")
            self._first.set()
            self._ended.wait(SECONDS)

    def _ask_script(self) -> list[tuple[str, int]]:
        run = subprocess.run([str(self._script)], capture_output=True, text=True, errors="replace",
                             timeout=SCRIPT_S, check=True, stdin=subprocess.DEVNULL)
        names = [line.strip() for line in run.stdout.splitlines() if line.strip()]
        return parse_hosts(",".join(
            name if ":" in name else f"{name}:{self._slots}" for name in names))

    def _warn_once(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            click.echo(f"warning: --host-discovery-script {self._script} {why}; it is asked again "
                       "every second, and this is told once", err=True)
