"""Hosts and slots of ``harp run``: from a list, a file, or a script that runs during the job.

All three are read alike. A host is a name or an address, of IPv6 with or without brackets; with
slots behind a colon it needs brackets where it would be ambiguous. A byte-order mark at the
front is skipped.
"""

from __future__ import annotations

import codecs
import ipaddress
import re
import subprocess
import threading
from typing import TYPE_CHECKING

import click

from harp.cli.io import InputError, read_text
from harp.cli.options import whole
from harp.cli.run.processes import ending
from harp.nearest import nearest_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SECONDS = 1.0
"""Between two runs of the script; the same as Horovod's driver."""
SCRIPT_S = 60.0
MARK = codecs.BOM_UTF8.decode()
"""The byte-order mark, which editors on Windows put at the front of a file."""
BRACKETED = re.compile(r"\[([^\[\]]*)\](?::(.*))?")
IMPOSSIBLE = re.compile(r"^-|[^\w.:@%-]")
"""Characters that no host name has, and options of ssh."""
OTHER_WORDS = ("max_slots", "max-slots", "username", "user", "binding", "ifname")
"""Further words of Open MPI's and MPICH's hostfiles; they have no effect here."""


def parse_hosts(text: str) -> list[tuple[str, int]]:
    """Parse ``host:slots,host:slots``; the default is one slot.

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
        raise click.BadParameter(f"a host appears twice in {text!r}", param_hint="-H")
    return hosts


def _read_host(part: str) -> tuple[str, int]:
    host, slots = _divide(part)
    number = whole(slots)
    if not number or not _is_name(host):
        raise ValueError(f"{part!r} is not a host; write HOST:SLOTS with at least one slot"
                         + "; the port of ssh is --ssh-port" * (host.count(":") == 1))
    return host, number


def _divide(part: str) -> tuple[str, str]:
    """Divide a host from its slots."""
    if found := BRACKETED.fullmatch(part):
        return found[1], "1" if found[2] is None else found[2]
    host, _, slots = part.rpartition(":") if ":" in part else (part, "", "1")
    if not _is_ipv6(part):
        return host, slots
    if _is_ipv6(host) and slots.isdecimal():
        raise ValueError(f"{part!r} can be read as one address or as {host} with {slots} slots; "
                         f"write [{part}] or [{host}]:{slots}")
    return part, "1"


def _is_name(host: str) -> bool:
    return bool(host) and not IMPOSSIBLE.search(host) and (":" not in host or _is_ipv6(host))


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def read_hostfile(path: Path) -> list[tuple[str, int]]:
    """Read lines ``host slots=N`` or ``host:N``, the formats of Open MPI, MPICH and Horovod."""
    try:
        lines = read_text(path).splitlines()
    except InputError as error:
        raise click.UsageError(f"--hostfile {error.message}") from None
    hosts: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            host, slots = _read_host_line(words)
            if host in hosts:
                raise ValueError(f"{host} is already listed above")
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
            raise ValueError(f"{word!r} is unknown; write HOST slots=N{hint}")
        slots = whole(value)
        if not slots:
            raise ValueError(f"{word!r} is not a number of slots; write slots=N with N at "
                             "least 1")
    if slots is None:
        return _read_host(host)
    found = BRACKETED.fullmatch(host)
    host = found[1] if found and found[2] is None else host
    if not _is_name(host):
        raise ValueError(f"{words[0]!r} is not a host; write HOST slots=N")
    return host, slots


class FoundHosts:
    """The hosts that a script prints as lines ``host:slots``; it runs once a second.

    If the script fails or prints a bad line, the hosts stay as they were; the first time prints a
    warning.

    Args:
        script: an executable file.
        slots: slots of a host printed without a number.

    """

    def __init__(self, script: Path, slots: int = 1) -> None:
        self._script, self._slots = script, slots
        self._found: list[tuple[str, int]] = []
        self._has_warned = False
        self._first = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def __call__(self) -> list[tuple[str, int]]:
        """Give the current hosts."""
        return self._found

    def wait_for(self, slots: int, timeout_s: float) -> list[tuple[str, int]]:
        """Wait until there are ``slots`` slots or the time is over; give the hosts."""
        for _ in range(max(1, int(timeout_s / SECONDS))):
            if sum(count for _, count in self._found) >= slots:
                break
            self._first.wait(SECONDS)
            self._first.clear()
        return self._found

    def close(self) -> None:
        """Stop running the script."""
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
                self._warn_once(f"printed a line that names no host: {error.message}")
            self._first.set()
            self._ended.wait(SECONDS)

    def _ask_script(self) -> list[tuple[str, int]]:
        run = subprocess.run([str(self._script)], capture_output=True, text=True, errors="replace",
                             timeout=SCRIPT_S, check=True, stdin=subprocess.DEVNULL)
        lines = run.stdout.removeprefix(MARK).splitlines()
        names = [line.strip() for line in lines if line.strip()]
        return parse_hosts(",".join(
            name if ":" in name else f"{name}:{self._slots}" for name in names))

    def _warn_once(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            click.echo(f"warning: --host-discovery-script {self._script} {why}; it runs again "
                       "every second, and this warning is shown once", err=True)
