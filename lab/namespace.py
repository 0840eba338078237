"""Network namespaces that vanish with the process that made them.

A namespace has no name and no process of its own: a descriptor keeps it, and whoever runs in it is
killed when its parent dies. So nothing is left over, not even after kill -9: the kernel takes a
namespace down with its devices when the last descriptor is closed, and processes end the
descriptors. There is nothing for the next start to clean.
"""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.bpf import checked, libc
from sim.network.network import NetworkError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NEWNET = 0x40000000


class Namespace:
    """A network namespace, there as long as its descriptor or a process in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fd = _unshared()

    @property
    def path(self) -> str:
        """Its file, for tools such as nsenter, while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def command(self, *words: str | Path) -> list[str]:
        """Return the command that runs another one here, killed when its parent dies."""
        return ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={self.path}", *map(str, words)]

    def batch(self, tool: str, lines: Sequence[str]) -> None:
        """Let ``ip`` or ``tc`` do all lines in one process."""
        if not lines:
            return
        done = subprocess.run(self.command(tool, "-batch", "-"), input="\n".join(lines) + "\n",
                              capture_output=True, text=True, check=False)
        if done.returncode:
            raise NetworkError(f"{tool} in {self.name}: {' '.join(done.stderr.split())}")

    def start(self, *words: str | Path, **options: Any) -> subprocess.Popen[Any]:
        """Start a command here."""
        return subprocess.Popen(self.command(*words), **options)

    def set_sysctls(self, values: dict[str, object]) -> None:
        """Set keys below ``net``, e.g. ``ipv4.ip_forward``."""
        script = "; ".join(f"echo {value} > /proc/sys/net/{key.replace('.', '/')}"
                           for key, value in values.items())
        done = subprocess.run(self.command("sh", "-c", script), capture_output=True, text=True,
                              check=False)
        if done.returncode:
            raise NetworkError(f"sysctl in {self.name}: {' '.join(done.stderr.split())}")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let the calling thread be here: what it opens belongs to this namespace."""
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
        """Let go of it."""
        os.close(self.fd)


def why_unusable() -> str:
    """Why no laboratory can be made here, or an empty string."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    if not Path("/proc/sys/net/ipv4/fib_multipath_hash_seed").exists():
        return ("needs Linux 6.11 or later, with multipath routes (CONFIG_IP_ROUTE_MULTIPATH), "
                "for a seed of their hash")
    return ""


def _unshared() -> int:
    """A descriptor of a new namespace; this process stays where it is."""
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
        raise NetworkError(f"no network namespace: {made[0].strerror}")
    return made[0]
