"""Build the client and the plugins of lab/nccl_client, and run two ranks of the client.

    with veth_pair() as (a, b):
        run_pair(client(), tcp_ref(), ["fifo", "tags"], spaces=(a.space, b.space))

Programs that it builds lie in build/nccl, named after their sources' contents, and are shared by
tests that run at the same time.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.c_programs import (
    HEADERS,
    ROOT,
    SANITIZED,
    build,
    kept_folder,
    library,
    locked,
    plugin_library,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lab.namespace import Namespace

SOURCES = ROOT / "lab" / "nccl_client"
CNET = ROOT / "cnet"
SHARED = ("-fPIC", "-shared", "-Wl,-z,defs")


def _made(name: str, sources: Sequence[Path], flags: Sequence[str],
          libraries: Sequence[Path] = (), more: Sequence[Path] = ()) -> Path:
    """Build it unless that was done from the same sources with the same flags."""
    folder = kept_folder("nccl", [*flags, *map(str, libraries)], [*sources, *more], most=80)
    with locked(folder):
        if not (folder / name).exists():
            build(folder / f"{name}.new", [*map(str, sources), *map(str, libraries)], flags)
            (folder / f"{name}.new").rename(folder / name)
    return folder / name


def client(flags: Sequence[str] = SANITIZED) -> Path:
    """Build the client of lab/nccl_client."""
    return _made("client", [SOURCES / "plugin.c", *sorted(SOURCES.glob("client*.c"))],
                 [*flags, "-Wl,--no-as-needed", "-ldl"],
                 more=[*SOURCES.glob("*.h"), CNET / "nccl" / "abi.h",
                       HEADERS / "bench.h"])


def tcp_ref(flags: Sequence[str] = SANITIZED, broken: str = "SOUND") -> Path:
    """Build the TCP reference, or one of its deliberately broken kinds (tcp_ref.h)."""
    return _made("libnccl-net-tcp-ref.so", sorted(SOURCES.glob("tcp_ref*.c")),
                 [*flags, *SHARED, f"-DBROKEN={broken}"],
                 more=[*SOURCES.glob("*.h"), CNET / "nccl" / "abi.h"])


def harp(flags: Sequence[str] = SANITIZED) -> Path:
    """Build HARP's plugin; it takes the place of the compiled one that a wheel has."""
    independent = list(dict.fromkeys([*flags, "-fPIC"]))
    exports = CNET / "nccl" / "exports.map"
    whole = f"-Wl,--whole-archive,{plugin_library(independent)},--no-whole-archive"
    return _made("libnccl-net-harp.so", [], [*flags, *SHARED, f"-Wl,--version-script={exports}",
                                             whole], [library(independent)], [exports])


@dataclass(frozen=True)
class Ended:
    """The end of two ranks: exit codes, and what each printed."""

    codes: tuple[int, int]
    said: tuple[str, str]
    logs: tuple[str, str]
    """Their stderr, with the plugin's log."""

    @property
    def good(self) -> bool:
        """Whether all scenarios passed."""
        return self.codes == (0, 0)

    def __str__(self) -> str:
        return "\n".join(f"-- rank {rank}, exit code {self.codes[rank]}\n{self.said[rank]}"
                         f"{self.logs[rank][-6000:]}" for rank in (0, 1))


Both = tuple[Any, Any]
"""Of rank 0 and of rank 1."""


class Pair:
    """Two ranks that run the same scenarios; a context manager that leaves no process."""

    def __init__(self, program: Path, plugins: Path | Both, scenarios: Sequence[str], *,
                 spaces: tuple[Namespace, Namespace],
                 settings: Mapping[str, str] | Both | None = None,
                 options: Sequence[str] = ()) -> None:
        both = plugins if isinstance(plugins, tuple) else (plugins, plugins)
        more = settings if isinstance(settings, tuple) else (settings or {}, settings or {})
        self._stack = ExitStack()
        self.ranks: list[subprocess.Popen[str]] = []
        place: list[str] = []
        for rank in (0, 1):
            words = [program, *options, *place, both[rank], *scenarios]
            process = spaces[rank].start(*words, env={**os.environ, **more[rank]}, text=True,
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.ranks.append(process)
            self._stack.callback(process.kill)
            if rank == 0:
                assert process.stdout is not None
                ready = process.stdout.readline().split()
                assert ready[:1] == ["ready"], process.communicate(timeout=10)[1]
                place = ["--handle", ready[1]]

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def end(self, timeout_s: float = 900) -> Ended:
        """Wait for both; each scenario has a limit of its own, so this does not take for ever."""
        spoken = [process.communicate(timeout=timeout_s) for process in self.ranks]
        return Ended((self.ranks[0].returncode, self.ranks[1].returncode),
                     (spoken[0][0], spoken[1][0]), (spoken[0][1], spoken[1][1]))


def run_pair(program: Path, plugins: Path | Both, scenarios: Sequence[str],
             **more: Any) -> Ended:
    """Run two ranks to their end."""
    with Pair(program, plugins, scenarios, **more) as pair:
        return pair.end()
