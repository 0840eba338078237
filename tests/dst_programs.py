"""Build and run the deterministic simulation of the session (tests/dst).

``python tests/dst_programs.py 100000`` runs that many seeds, as ``make dst SEEDS=100000`` does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from c_programs import ROOT, SANITIZED, build

if TYPE_CHECKING:
    from pathlib import Path

HARNESS = ["tests/dst/link.c", "tests/dst/end.c", "tests/dst/world.c", "tests/dst/main.c"]
UNDER_SESSION = ["sack", "sent", "rtt", "loss", "pacer", "cc_fixed", "cc_swift", "body", "wire",
                 "chunks", "outbox", "inbox", "path", "siphash", "listener"]


def session_sources() -> list[str]:
    """All C files of the session, as paths from the repository's root."""
    parts = sorted(path.name for path in (ROOT / "cnet").glob("session*.c"))
    return [f"cnet/{name}.c" for name in UNDER_SESSION] + [f"cnet/{name}" for name in parts]


def build_dst(out: Path, bug: str | None = None) -> Path:
    """The simulation as a program; ``bug`` is a deliberate fault, compiled into the session.

    With a fault it is built without sanitizers, in a third of the time: the harness must see it.
    """
    flags = ["-O0", f"-DHARP_BUG_{bug}"] if bug else SANITIZED
    return build(out, session_sources() + HARNESS, [*flags, "-I", str(ROOT / "tests" / "dst")])


def run_seeds(program: Path, first: int, count: int) -> str:
    """Run seeds; the first one that fails is an assertion, whose text says how to replay it."""
    done = subprocess.run([str(program), str(first), str(count)], capture_output=True, text=True,
                          check=False, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def main(seeds: int) -> None:
    """Run ``seeds`` seeds on all cores."""
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    program = build_dst(folder / "dst")
    cores = os.cpu_count() or 1
    share = -(-seeds // cores)
    with ThreadPoolExecutor(cores) as pool:
        for line in pool.map(lambda i: run_seeds(program, i * share, share), range(cores)):
            print(line, end="")


if __name__ == "__main__":
    main(int(sys.argv[1]))
