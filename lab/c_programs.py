"""Compile the C programs of tests and of bench, and run them.

A test program passes if it exits with 0. Every one is compiled with AddressSanitizer and
UndefinedBehaviorSanitizer unless the test asks for something else, with warnings as errors.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 600
"""Longest run of a compiler or of a program."""
HEADERS = ROOT / "lab" / "c"
"""Headers that programs of several folders include."""
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-g1", "-I", str(ROOT / "cnet"),
          "-I", str(HEADERS)]
# Three sets of flags for most tests, since each is another archive of cnet to compile; they are fit
# for plugins as well.
SANITIZED = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
             "-fno-omit-frame-pointer", "-fPIC"]
RACES = ["-O1", "-fsanitize=thread", "-Wno-tsan", "-fPIC"]
PLAIN = ["-O2", "-fPIC"]


def build(out: Path, sources: Sequence[str], flags: Sequence[str] = SANITIZED,
          root: Path = ROOT) -> Path:
    """Compile ``sources`` (paths from the repository's root) into the program ``out``.

    Files of cnet are those below ``root``, which may be a copy with a planted bug. A program of the
    repository's own files is compiled once for all tests and workers and kept in build/, named
    after the contents of its sources and of all headers.
    """
    places = [(root if source.startswith("cnet/") else ROOT) / source for source in sources]
    if any(not Path(word).is_relative_to(ROOT)
           for word in [*flags, str(root), *map(str, places)] if word.startswith("/")):
        return _compile_program(out, places, flags, root)
    headers = [path for folder in ("cnet", "lab", "sim", "tests", "bench")
               for path in sorted((ROOT / folder).rglob("*.h"))]
    folder = kept_folder("programs", [*flags, *map(str, places)], [*places, *headers], most=300)
    with locked(folder):
        if not (folder / "program").exists():
            _compile_program(folder / "new", places, flags, root).rename(folder / "program")
        shutil.copy(folder / "program", out)
    return out


def _compile_program(out: Path, places: Sequence[Path], flags: Sequence[str], root: Path) -> Path:
    command = [os.environ.get("CC", "cc"), "-I", str(root / "cnet"), *STRICT, *flags,
               *map(str, places), "-pthread", "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return out


def kept_folder(kind: str, words: Sequence[str], files: Sequence[Path], *, most: int) -> Path:
    """Return the folder in build/ for what is made of these files with these words.

    The ``most`` folders of this kind that were used last are kept.
    """
    key = hashlib.sha256(repr([os.environ.get("CC", "cc"), *words]).encode())
    for file in files:
        key.update(file.read_bytes())
    folder = ROOT / "build" / kind / key.hexdigest()[:16]
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        others = sorted(folder.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in others[:-most]:
            shutil.rmtree(old, ignore_errors=True)
    os.utime(folder)
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time make what belongs into the folder."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def library(flags: Sequence[str] = SANITIZED) -> Path:
    """Compile cnet without the plugin, as an archive that tests and workers share.

    It lies in build/, named after the contents of what it is made of; ``build`` takes it as a
    source.
    """
    if flags == PLAIN:
        return _kept_archive("cnet", flags, _objects_of_the_build(), lambda objects, *_: objects)
    return _kept_archive("cnet", flags, sorted(
        path for path in (ROOT / "cnet").glob("*/*.[ch]") if path.parent.name != "nccl"),
        _compile_objects)


def plugin_library(flags: Sequence[str] = SANITIZED) -> Path:
    """Compile the NCCL plugin as such an archive; it needs that of `library` behind it."""
    headers = (path for path in (ROOT / "cnet").glob("*/*.h") if path.parent.name != "nccl")
    return _kept_archive("plugin", [*flags, "-fvisibility=hidden"], sorted(
        [*headers, *(ROOT / "cnet" / "nccl").glob("*.[ch]")]), _compile_objects)


def _kept_archive(kind: str, flags: Sequence[str], files: Sequence[Path],
                  objects_of: Callable[[Sequence[Path], Path, Sequence[str]], Sequence[Path]],
                  ) -> Path:
    folder = kept_folder(kind, flags, files, most=12)
    archive = folder / f"lib{kind}.a"
    with locked(folder):
        if not archive.exists():
            objects = objects_of(files, folder, flags)
            whole = folder / "whole.a"
            subprocess.run(["ar", "rcs", str(whole), *map(str, objects)], check=True)
            whole.rename(archive)
    return archive


def _objects_of_the_build() -> list[Path]:
    """Give what the build of `harp` compiled for a release; to import it makes that anew."""
    from harp import _cnet

    return sorted(Path(_cnet.__file__).parents[1].glob("cnet/libcnet*.a.p/*.o"))


def _compile_objects(files: Sequence[Path], folder: Path, flags: Sequence[str]) -> list[Path]:
    def one(source: Path) -> Path:
        out = folder / f"{source.stem}.o"
        command = [os.environ.get("CC", "cc"), *STRICT, *flags, "-c", str(source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return out

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, (path for path in files if path.suffix == ".c")))


def run(program: Path, *arguments: str) -> str:
    """Run a program, demand exit code 0, return what it printed."""
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout
