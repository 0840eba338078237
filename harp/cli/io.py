"""Output files, written whole or not at all, and the sentence for a port that cannot be opened.

A target is a path or ``-`` for standard output. Targets are checked before the work starts, so
that a long run does not end with "no such directory". Writing goes to a temporary file beside
the target which then takes the target's place in one step: a reader of the target sees the old
content or the new, never a half. Devices and pipes (``/dev/stdout``) are written in place, because
they cannot be replaced. Every failure is an `OutputError` of one sentence.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

import click

from harp import reading as files
from harp.nearest import nearest_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

STDOUT = "-"
Read = TypeVar("Read")


class OutputError(click.ClickException):
    """A target cannot be written: a wrong use of the command, in one sentence for the user."""

    exit_code = 2


class InputError(click.ClickException):
    """A file that a command was given cannot be used: a wrong use of the command."""

    exit_code = 2


def hex_bytes(text: str) -> bytes:
    """Read bytes in hexadecimal; ValueError, one sentence, if they are not."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not hexadecimal: pairs of 0 to 9 and a to f are "
                         "possible") from None


def read_text(path: Path) -> str:
    """Read a text file; `InputError` if it cannot be read."""
    return reading(path, files.read_text)


def reading(path: Path, how: Callable[[Path], Read]) -> Read:
    """Read a file in some way; `InputError` that names it if that fails."""
    try:
        return how(path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} cannot be read: it is not text") from error
    except OSError as error:
        near = nearest_path(path) if isinstance(error, FileNotFoundError) else None
        meant = f"; did you mean {near!r}?" if near is not None else ""
        raise InputError(f"{path} cannot be read: {_reason(error)}{meant}") from error


def check_target(target: str, suffixes: Collection[str] = (), *, stdout: bool = True) -> None:
    """Raise `OutputError` unless ``target`` could be written now.

    ``suffixes`` lists the allowed endings with their dot; empty allows all. ``stdout`` allows
    ``-``; pictures do not.
    """
    if target == STDOUT:
        if not stdout:
            raise OutputError("cannot write to '-': this output needs a file name")
        return
    path = Path(target)
    if suffixes and path.suffix.lower() not in suffixes:
        allowed = ", ".join(sorted(suffixes))
        raise OutputError(f"cannot write '{target}': the name must end in one of {allowed}")
    problem = _problem(path)
    if problem:
        raise OutputError(f"cannot write {target!r}: {problem}")


def check_targets(targets: Mapping[str, str | None], *, inputs: Iterable[str] = ()) -> None:
    """Raise `OutputError` where two options name one file, or one names an input file.

    ``targets`` maps an option (``--json``) to its target, or None where it was not given.
    """
    owners = {_identity(path): f"the input file '{path}'" for path in inputs}
    for option, target in targets.items():
        if target is None:
            continue
        identity = _identity(target)
        if identity in owners:
            raise OutputError(f"cannot write {option} {target!r}: it is already {owners[identity]}")
        owners[identity] = f"the target of {option}"


def check_folder(folder: Path, files: Iterable[str] = ()) -> None:
    """Raise `OutputError` unless `make_folder` could make it and ``files`` be written there now."""
    try:
        there = next(one for one in (folder, *folder.absolute().parents) if _mode(one) is not None)
        problem = _folder_problem(there)
    except OSError as error:
        problem = _reason(error)
    if problem:
        raise OutputError(f"cannot make files in '{folder}': {problem}")
    if folder.exists():
        for name in files:
            check_target(str(folder / name))


def make_folder(folder: Path) -> None:
    """Make it and those above it, where they are not there, and raise `OutputError` if it fails."""
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder '{folder}': {_reason(error)}") from error


def write_text(target: str, text: str, mode: int | None = None) -> None:
    """Write ``text`` as UTF-8 to ``target``; see `write_bytes`."""
    write_bytes(target, text.encode("utf-8"), mode)


def write_bytes(target: str, data: bytes, mode: int | None = None) -> None:
    """Replace the content of ``target`` by ``data``; on any failure the old content stays.

    By default a file keeps its mode, and the umask decides over a new one's.
    """
    if target == STDOUT:
        _write_stdout(data)
        return
    check_target(target)
    with _naming_target(target):
        before = _mode(Path(target))
        if before is None or stat.S_ISREG(before):
            # A link stays a link: what it points to is replaced.
            _replace(Path(os.path.realpath(target)), data, before if mode is None else mode)
        else:
            Path(target).write_bytes(data)


def write_files(contents: Mapping[str, bytes]) -> None:
    """Replace the content of all targets, or of none where one has no room.

    Standard output, and all else that is no file, is written after all files.
    """
    fresh: list[tuple[str, Path, Path]] = []
    others = [target for target in contents if not _is_file(target)]
    try:
        for target in (one for one in contents if one not in others):
            path = Path(os.path.realpath(target))
            with _naming_target(target):
                fresh.append((target, _write_beside(path, contents[target], _mode(path)), path))
        for target, temporary, path in fresh:
            with _naming_target(target):
                os.replace(temporary, path)  # noqa: PTH105 - as in `_replace`
    except BaseException:
        for _, temporary, _ in fresh:
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise
    for target in others:
        write_bytes(target, contents[target])


def _is_file(target: str) -> bool:
    """Whether a target is a file, or will be; raises `OutputError` where it cannot be."""
    if target == STDOUT:
        return False
    check_target(target)
    mode = _mode(Path(target))
    return mode is None or stat.S_ISREG(mode)


@contextlib.contextmanager
def _naming_target(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {target!r}: {_reason(error)}") from error


def _replace(path: Path, data: bytes, mode: int | None) -> None:
    temporary = _write_beside(path, data, mode)
    try:
        os.replace(temporary, path)  # noqa: PTH105 - the call that tests stand in for
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _write_beside(path: Path, data: bytes, mode: int | None) -> Path:
    """Write a file that can take the place of ``path``, and flush it."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    # Mode 0666 lets the user's umask decide, as for any file; an existing file keeps its mode.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor has no path
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return temporary


def drop_output(stream: TextIO) -> None:
    """Let what a stream holds and gets go nowhere, after it could not be written.

    Python flushes its standard streams once more at exit; that would be a traceback.
    """
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def _write_stdout(data: bytes) -> None:
    try:
        sys.stdout.flush()
        binary = getattr(sys.stdout, "buffer", None)
        if binary is None:  # A notebook's or a test's stand-in takes text only.
            sys.stdout.write(data.decode("utf-8"))
        else:
            binary.write(data)
        sys.stdout.flush()
    except BrokenPipeError as error:
        drop_output(sys.stdout)
        raise OutputError("cannot write to standard output: its reader has gone") from error
    except OSError as error:
        raise OutputError(f"cannot write to standard output: {_reason(error)}") from error


def _problem(path: Path) -> str | None:
    """Say why ``path`` cannot be written, or None."""
    try:
        mode = _mode(path)
        if mode is not None:
            if stat.S_ISDIR(mode):
                return "it is a directory"
            if not os.access(path, os.W_OK):
                return "no permission to change it"
            if not stat.S_ISREG(mode):
                return None  # Written in place, whatever its directory allows.
        return _folder_problem(Path(os.path.realpath(path)).parent)
    except OSError as error:
        return _reason(error)
    except ValueError:
        return "the name holds a NUL byte"


def _folder_problem(folder: Path) -> str | None:
    mode = _mode(folder)
    if mode is None:
        return f"there is no directory '{folder}'"
    if not stat.S_ISDIR(mode):
        return f"'{folder}' is not a directory"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"no permission to create files in '{folder}'"
    return None


def _mode(path: Path) -> int | None:
    """Return the file mode, or None where nothing is there yet."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _identity(target: str) -> str:
    if target == STDOUT:
        return STDOUT
    with contextlib.suppress(OSError, ValueError):
        return os.path.realpath(target)
    return target


def reason_of(error: OSError) -> str:
    """Say in one sentence, for the user, what failed that no command foresaw.

    An error without a file is one of standard output.
    """
    what = error.filename or "standard output"
    return f"{what}: {error.strerror or error}"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


@contextlib.contextmanager
def naming_address(address: str, port: int) -> Iterator[None]:
    """Turn the OSError of a listening socket into one sentence that names the address."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"cannot listen on TCP port {port} of {address}: "
                                   f"{error.strerror}") from None
