"""Build and run the fuzz targets (tests/cnet/fuzz/fuzz_*.c).

``python -m tests.cnet.fuzz.fuzz_programs 600`` fuzzes all of them at once for 600 seconds, as
``make fuzz SECONDS=600`` does. New inputs are kept in build/fuzz; an input that crashes stays
there, and belongs into the corpus once it does not crash any more.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lab.c_programs import SANITIZED, STRICT, build
from tests.dst.dst_programs import session_sources
from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TARGETS = {"wire": ["cnet/wire/wire.c", "cnet/wire/body.c"], "session": session_sources()}
INPUT_MAX = {"wire": 300, "session": 600}  # bytes


def corpus(target: str) -> Path:
    """Return where the stored inputs of a target lie."""
    return ROOT / "tests" / "data" / "corpora" / target


def has_libfuzzer() -> bool:
    """Whether clang is installed, and with it what links a fuzz target."""
    if not shutil.which("clang"):
        return False
    found = subprocess.run(["clang", "-print-file-name=libclang_rt.fuzzer-x86_64.a"], text=True,
                           capture_output=True, check=True).stdout.strip()
    return found.startswith("/")


def build_replay(out: Path, target: str) -> Path:
    """Build the target as a program that reads the files it is given."""
    return build(out, [f"tests/cnet/fuzz/fuzz_{target}.c", "tests/cnet/fuzz/fuzz_replay.c",
                       *TARGETS[target]])


def build_fuzzer(out: Path, target: str, sources: Sequence[str] | None = None) -> Path:
    """Build the target as a libFuzzer program, of other ``sources`` if they are given."""
    flags = [*SANITIZED, "-fsanitize=fuzzer"]
    files = [str(ROOT / f) for f in [f"tests/cnet/fuzz/fuzz_{target}.c",
                                    *(sources or TARGETS[target])]]
    subprocess.run(["clang", *STRICT, *flags, *files, "-o", str(out)], check=True, timeout=300)
    return out


def fuzz(program: Path, target: str, folder: Path, until: str) -> Path | None:
    """Fuzz in ``folder``, from the corpus on; return what crashed, or None.

    ``until`` is libFuzzer's option that ends it: ``-runs`` or ``-max_total_time``.
    """
    found = folder / target
    found.mkdir(parents=True, exist_ok=True)
    command = [str(program), until, f"-max_len={INPUT_MAX[target]}", "-timeout=120",
               f"-artifact_prefix={folder}/{target}-", str(found),
               str(corpus(target))]
    with (folder / f"{target}.log").open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=log, check=False)
    if done.returncode == 0:
        return None
    return max((path for path in folder.glob(f"{target}-*") if path.is_file()),
               key=lambda path: path.stat().st_mtime)


def main(seconds: int) -> int:
    """Fuzz all targets at once; 1 if one crashed."""
    folder = ROOT / "build" / "fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    programs = {target: build_fuzzer(folder / f"fuzz_{target}", target) for target in TARGETS}
    with ThreadPoolExecutor(len(TARGETS)) as pool:
        crashes = dict(zip(TARGETS, pool.map(
            lambda target: fuzz(programs[target], target, folder,
                                f"-max_total_time={seconds}"), TARGETS), strict=True))
    for target, crash in crashes.items():
        print(f"{target}: " + (f"crashed: {programs[target]} {crash}" if crash
                               else f"nothing in {seconds} s; new inputs in {folder / target}"))
    return int(any(crashes.values()))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
