"""Access to the host that is set up: all reads and all changes.

Tests replace it by a fake.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from harp.net import nics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Refused(Exception):  # noqa: N818  (said in a word)
    """The kernel or a tool refused; the text is its message."""


class Host:
    """A host, this one; paths are absolute, and lie below ``root``."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    # ---- Files ----

    def read(self, path: str) -> str | None:
        """Give a file's text, or None if it cannot be read; `store` writes any byte as it was."""
        try:
            return self._at(path).read_bytes().decode("utf-8", "surrogateescape")
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Give the number that a file holds."""
        try:
            return int(self.read(path) or "")
        except ValueError:
            return None

    def find(self, pattern: str) -> list[str]:
        """Give the paths that fit a pattern of glob(3), in order."""
        root = str(self.root).rstrip("/")
        found = glob.glob(glob.escape(root) + pattern)  # noqa: PTH207  (it matches folders by "*/")
        return sorted(path.removeprefix(root) for path in found)

    def write(self, path: str, text: str) -> None:
        """Write into a file of the kernel's."""
        try:
            self._at(path).write_text(f"{text}\n")
        except OSError as error:
            raise Refused(str(error.strerror)) from None

    def may_be_written(self, path: str) -> bool:
        """Whether root could write into a file of the kernel's: not in every namespace."""
        try:
            return bool(self._at(path).stat().st_mode & 0o200
                        and not os.statvfs(self._at(path)).f_flag & os.ST_RDONLY)
        except OSError:
            return False

    def store(self, path: str, text: str | None) -> None:
        """Put a file in its place as a whole, or take it and its empty folder away."""
        at = self._at(path)
        try:
            if text is None:
                at.unlink(missing_ok=True)
                if at.parent.is_dir() and not any(at.parent.iterdir()):
                    at.parent.rmdir()
                return
            if not at.parent.is_dir():
                at.parent.mkdir(parents=True)
                at.parent.chmod(0o755)  # whatever the umask: those who train have to read it
            new = at.with_name(f".{at.name}.new")
            with new.open("wb") as file:
                file.write(text.encode("utf-8", "surrogateescape"))
                file.flush()
                os.fsync(file.fileno())
            new.chmod(at.stat().st_mode if at.exists() else 0o644)
            new.replace(at)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from None

    # ---- Tools ----

    def has(self, tool: str) -> bool:
        """Whether a tool is installed."""
        return shutil.which(tool) is not None

    def run(self, words: Sequence[str]) -> str:
        """Run a command to its end and give what it printed."""
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise Refused(said[-1] if said else f"exit code {done.returncode}")
        return done.stdout

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock out other runs, without leaving a file behind."""
        folder = self._at("/var/lib")
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise Refused("another harp setup is running on this host: wait for it") from None
        finally:
            os.close(held)

    def may_change(self) -> bool:
        """Whether this user has the right to change the host."""
        return os.geteuid() == 0

    # ---- Network interfaces ----

    def nics(self) -> list[nics.Nic]:
        """Give all Ethernet interfaces."""
        return nics.nics()

    def has_address(self, name: str) -> bool:
        """Whether an interface has an address that others can reach."""
        return nics.has_address(name)

    def channels(self, name: str) -> dict[str, tuple[int, int]]:
        """Give an interface's queues by kind: how many there are and could be."""
        return nics.channels(name)

    def rings(self, name: str) -> dict[str, tuple[int, int]]:
        """Give an interface's ring sizes: what they are and could be."""
        return nics.rings(name)
