"""Network namespaces that vanish with the process that made them.

    with Net() as net:                   # veth.py: namespaces and the pairs between them
        space = net.namespace()
        space.run("ip", "link", "show")

A namespace has no name in the file system and no process of its own. A descriptor of this process
and the processes inside keep it, and those die with this one. So nothing is left over, not even
after kill -9, and any number of namespaces may use the same device names and addresses at the same
time. Needs root.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.system_calls import checked, libc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NEWNET = 0x40000000
_SIOCSIFFLAGS, _UP, _RUNNING = 0x8914, 0x1, 0x40  # linux/sockios.h, linux/if.h


class LabError(RuntimeError):
    """The kernel or a tool refused to build a part of a laboratory."""


class Namespace:
    """A network namespace with its loopback up; its descriptor or a process in it keeps it."""

    def __init__(self, name: str = "a namespace") -> None:
        self.name = name
        self.fd = _unshared()
        self._started: list[subprocess.Popen[Any]] = []
        with self.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP | _RUNNING))

    @property
    def path(self) -> str:
        """Its file, for tools such as nsenter, while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def command(self, *words: str | Path) -> list[str]:
        """Return the command that runs another one here, killed when its parent dies."""
        return ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={self.path}", *map(str, words)]

    def run(self, *words: str | Path, timeout_s: float = 60) -> str:
        """Run a command here to its end and return its output; LabError unless it exits with 0."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, check=False,
                              timeout=timeout_s)
        if done.returncode:
            raise LabError(f"{' '.join(map(str, words))}: exit code {done.returncode}: "
                           f"{done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def start(self, *words: str | Path, **options: Any) -> subprocess.Popen[Any]:
        """Start a command here; closing the namespace kills it."""
        process = subprocess.Popen(self.command(*words), **options)
        self._started.append(process)
        return process

    def batch(self, tool: str, lines: Sequence[str]) -> None:
        """Run all lines by one process of ``ip`` or ``tc``."""
        if not lines:
            return
        done = subprocess.run(self.command(tool, "-batch", "-"), input="\n".join(lines) + "\n",
                              capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"{tool} in {self.name}: {' '.join(done.stderr.split())}")

    def sysctl(self, key: str, value: object) -> None:
        """Set a key below ``net``, e.g. ``ipv4.ip_forward``."""
        try:
            with self.entered():
                Path("/proc/sys/net", *key.split(".")).write_text(f"{value}\n")
        except OSError as error:
            raise LabError(f"sysctl net.{key} in {self.name}: {error.strerror}") from error

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move the calling thread here: sockets that it opens belong to this namespace."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            checked(libc.setns(self.fd, _NEWNET))
            try:
                yield
            finally:
                checked(libc.setns(home, _NEWNET))
        finally:
            os.close(home)

    def close(self) -> None:
        """Kill the commands that were started here, and close the descriptor."""
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        self._started = []
        os.close(self.fd)


def why_unusable() -> str:
    """Return why no namespace can be made here, or an empty string: for pytest.mark.skipif."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    return "" if shutil.which("ip") else "needs ip of iproute2, for network namespaces"


def _unshared() -> int:
    """Return a descriptor of a new namespace; this process stays where it is."""
    made: list[int | OSError] = []

    def leave() -> None:
        # A thread may leave for a new namespace alone.
        try:
            checked(libc.unshare(_NEWNET))
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise LabError(f"no network namespace: {made[0].strerror}")
    return made[0]
