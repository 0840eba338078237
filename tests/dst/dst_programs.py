"""Build and run the deterministic simulation of sessions and of engines (tests/dst).

``python -m tests.dst.dst_programs 100000`` runs that many seeds, as ``make dst SEEDS=100000`` does;
``python -m tests.dst.dst_programs seed 7`` replays one, as ``make dst SEED=7`` does, ``field 7``
one change of a field (tests/dst/fields.c), ``engine 7`` one run of engines (tests/dst/engine),
``tcp 7`` one of engines over the product's tcp port and a kernel in virtual time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lab.c_programs import PLAIN, SANITIZED, build, library
from tests.support import ROOT
from tests.support.planted_bugs import plant

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.planted_bugs import Bug

SOCKETS = ["socket", "bind", "listen", "connect", "accept4", "getsockname", "setsockopt",
           "getsockopt", "shutdown", "close", "sendmsg", "recvmsg", "epoll_create1", "epoll_ctl",
           "epoll_wait", "harp_interface_find"]
"""Calls of the tcp port that tests/dst/engine/tcp_kernel.c answers in virtual time."""


def cnet(*patterns: str) -> list[str]:
    """Paths from the repository's root of the files of cnet that fit."""
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns
                  for path in (ROOT / "cnet").glob(pattern))


def session_sources() -> list[str]:
    """All C files of the session and of what it needs."""
    return cnet("cc/*.c", "session/*.c", "wire/body.c", "wire/wire.c", "base/siphash.c",
                "base/chunks.c")


def driver_sources() -> list[str]:
    """The session and all that a driver needs beside it: tags, keys and sums."""
    return sorted({*session_sources(), *cnet("wire/*.c")})


def _build(out: Path, harness: Sequence[str], folders: Sequence[Path], flags: Sequence[str],
           bug: Bug | None, link: Sequence[str] = ()) -> Path:
    """The harness and cnet; with a bug, what it changes stands before the archive of the rest.

    With a bug it is built without sanitizers, in a third of the time: the harness must see it. One
    in a header is a bug of all files of the session.
    """
    include = [word for folder in folders for word in ("-I", str(folder))]
    if not bug:
        return build(out, [*harness, str(library(flags))], [*flags, *include, *link])
    changed = sorted(f"cnet/{edit.file}" for edit in bug.edits)
    if any(file.endswith(".h") for file in changed):
        changed = [*cnet("virtual/*.c"), *driver_sources()]
    root = plant(bug, out.parent / "planted")
    return build(out, [*harness, *sorted(set(changed)), str(library(PLAIN))],
                 [*PLAIN, *include, *link], root)


def build_dst(out: Path, bug: Bug | None = None, flags: Sequence[str] = SANITIZED) -> Path:
    """The simulation of sessions as a program, of the product or with a deliberate fault."""
    folder = ROOT / "tests" / "dst"
    harness = sorted(f"tests/dst/{path.name}" for path in folder.glob("*.c"))
    return _build(out, harness, [folder], flags, bug)


def build_engines(out: Path, bug: Bug | None = None, flags: Sequence[str] = SANITIZED) -> Path:
    """The simulation of engines as a program, as `build_dst` does for sessions."""
    folder = ROOT / "tests" / "dst"
    shared = [f"tests/dst/{name}.c" for name in ("common", "faults", "forge", "link", "network",
                                                   "script")]
    own = sorted(f"tests/dst/engine/{path.name}" for path in (folder / "engine").glob("*.c"))
    wraps = [f"-Wl,--wrap={name}" for name in SOCKETS]
    return _build(out, [*shared, *own], [folder, folder / "engine"], flags, bug, wraps)


def run_dst(program: Path, *arguments: object) -> str:
    """Run the simulation; what fails is an assertion, whose text says how to replay it."""
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def main(arguments: list[str]) -> None:
    """Run that many seeds of each kind on all cores, or replay one run."""
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    sessions, engines = folder / "dst", folder / "dst_engines"
    if arguments[0] == "engine":
        print(run_dst(build_engines(engines), arguments[1], 1), end="")
    elif arguments[0] == "tcp":
        print(run_dst(build_engines(engines), arguments[1], 1, "tcp"), end="")
    elif arguments[0] == "seed":
        print(run_dst(build_dst(sessions), arguments[1], "-v"), end="")
    elif arguments[0] == "field":
        print(run_dst(build_dst(sessions), *arguments), end="")
    else:
        build_dst(sessions)
        build_engines(engines)
        cores = os.cpu_count() or 1
        share = -(-int(arguments[0]) // cores)
        with ThreadPoolExecutor(cores) as pool:
            for program in (sessions, engines):
                runs = [pool.submit(run_dst, program, i * share, share) for i in range(cores)]
                for done in runs:
                    print(done.result(), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
