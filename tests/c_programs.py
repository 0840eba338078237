"""Compile the C test programs of tests/c and run them.

A program passes if it exits with 0. Every one is compiled with AddressSanitizer and
UndefinedBehaviorSanitizer unless the test asks for something else, with warnings as errors.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-I", str(ROOT / "cnet")]
SANITIZED = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
             "-fno-omit-frame-pointer"]


def build(out: Path, sources: Sequence[str], flags: Sequence[str] = SANITIZED) -> Path:
    """Compile ``sources`` (paths from the repository's root) into the program ``out``."""
    command = [os.environ.get("CC", "cc"), *STRICT, *flags,
               *(str(ROOT / source) for source in sources), "-pthread", "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return out


def run(program: Path, *arguments: str) -> str:
    """Run a program, demand exit code 0 within a minute, return what it printed."""
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False,
                          timeout=60)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout
