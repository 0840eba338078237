"""Compile the C test programs of the tests and run them.

A program passes if it exits with 0. Every one is compiled with AddressSanitizer and
UndefinedBehaviorSanitizer unless the test asks for something else, with warnings as errors.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-I", str(ROOT / "cnet"),
          "-I", str(ROOT / "tests" / "support")]
SANITIZED = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
             "-fno-omit-frame-pointer"]
PATIENCE_S = 600
"""Nothing takes so long, however busy the machine is: a bound against what hangs."""


def build(out: Path, sources: Sequence[str], flags: Sequence[str] = SANITIZED,
          root: Path = ROOT) -> Path:
    """Compile ``sources`` (paths from the repository's root) into the program ``out``.

    Of cnet those below ``root`` are taken, which may have a copy of it with a bug.
    """
    places = [str((root if source.startswith("cnet/") else ROOT) / source) for source in sources]
    command = [os.environ.get("CC", "cc"), "-I", str(root / "cnet"), *STRICT, *flags, *places,
               "-pthread", "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return out


def library(flags: Sequence[str] = SANITIZED) -> Path:
    """Compile cnet without the plugin, as an archive that tests and workers share.

    It lies in build/, named after the sources' contents; ``build`` takes it as a source.
    """
    sources = sorted(path for path in (ROOT / "cnet").glob("*/*.[ch]")
                     if path.parent.name != "nccl")
    key = hashlib.sha256(repr([os.environ.get("CC", "cc"), *flags]).encode())
    for source in sources:
        key.update(source.read_bytes())
    folder = ROOT / "build" / "cnet" / key.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "libcnet.a"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _compile([path for path in sources if path.suffix == ".c"], folder, flags)
            _forget_others(folder)
        os.utime(folder)
    return archive


def _compile(sources: Sequence[Path], folder: Path, flags: Sequence[str]) -> None:
    def one(source: Path) -> Path:
        out = folder / f"{source.stem}.o"
        command = [os.environ.get("CC", "cc"), *STRICT, *flags, "-c", str(source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return out

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [str(path) for path in pool.map(one, sources)]
    whole = folder / "whole.a"
    subprocess.run(["ar", "rcs", str(whole), *objects], check=True)
    whole.rename(folder / "libcnet.a")


def _forget_others(folder: Path) -> None:
    """Keep the archives that were used last, other tests' among them."""
    others = sorted(folder.parent.iterdir(), key=lambda path: path.stat().st_mtime)
    for old in others[:-12]:
        shutil.rmtree(old, ignore_errors=True)


def run(program: Path, *arguments: str) -> str:
    """Run a program, demand exit code 0, return what it printed."""
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout
