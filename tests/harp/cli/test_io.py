"""Output files: whole or not at all, and a clear sentence when they cannot be written."""

from __future__ import annotations

import io
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harp.cli import io as output
from harp.cli.io import OutputError, check_target, check_targets, write_bytes, write_text

KILLED_WHILE_WRITING = """
import os, signal, sys
from harp.cli import io as output
{stop}
output.write_text(sys.argv[1], "new" * 1_000_000)
"""
STOPS = {
    # After the bytes are in the temporary file, and just before they would take the place.
    "in fsync": "output.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)",
    "in replace": "output.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("stop", STOPS)
def test_a_killed_process_leaves_the_old_file(tmp_path: Path, stop: str) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING.format(stop=STOPS[stop]),
                           str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert target.read_text() == "old"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_no_other(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(output.os, call, fail)
    with pytest.raises((OutputError, KeyboardInterrupt)) as caught:
        write_text(str(target), "new")
    if isinstance(error, OSError):
        assert str(caught.value) == f"cannot write '{target}': no space left on device"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert target.read_text() == "old"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_of_several_files_all_are_written_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                  call: str) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_text("old")
    kept, calls = getattr(output.os, call), []

    def fail(*given: object) -> None:
        calls.append(given)
        if len(calls) == (2 if call == "fsync" else 1):
            raise OSError(28, "No space left on device")
        kept(*given)

    files = {str(there): b"1", str(new): b"2", os.devnull: b"3"}
    with monkeypatch.context() as patch:
        patch.setattr(output.os, call, fail)
        with pytest.raises(OutputError, match="no space left on device"):
            output.write_files(files)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert there.read_text() == "old"
    output.write_files(files)
    assert (there.read_text(), new.read_text()) == ("1", "2")


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    for text in ("first, ä\n", "second\n"):
        write_text(str(target), text)
        assert target.read_bytes() == text.encode()
    assert len(list(tmp_path.iterdir())) == 1


def test_modes_follow_the_umask_or_the_old_file(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.touch()
    old.chmod(0o604)
    before = os.umask(0o027)
    try:
        write_bytes(str(new), b"")
        write_bytes(str(old), b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE(new.stat().st_mode) == 0o640
    assert stat.S_IMODE(old.stat().st_mode) == 0o604


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)
    write_text(str(link), "x")
    assert link.is_symlink()
    assert real.read_text() == "x"


def test_devices_and_pipes_are_written_in_place(tmp_path: Path) -> None:
    write_bytes(os.devnull, b"x")
    assert not Path(os.devnull).is_file()
    done = subprocess.run([sys.executable, "-c", "from harp.cli.io import *\n"
                           "write_text('/dev/stdout', 'through a pipe')"],
                          check=True, capture_output=True)
    assert done.stdout == b"through a pipe"


def test_minus_is_standard_output_in_utf_8() -> None:
    done = subprocess.run([sys.executable, "-c", "from harp.cli.io import *\n"
                           "print('before'); write_text('-', 'ä'); print('after')"],
                          check=True, capture_output=True,
                          env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.stdout == b"before\n\xc3\xa4after\n"


def test_standard_output_may_be_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    write_text("-", "ä")
    assert stream.getvalue() == "ä"


def test_a_reader_that_has_gone_is_one_sentence() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import sys\nfrom harp.cli.io import *\n"
             "try: write_text('-', 'x' * 1_000_000)\n"
             "except OutputError as e: print(e, file=sys.stderr)"],
            check=False, stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert done.stderr == "cannot write to standard output: its reader has gone\n"
    assert done.returncode == 0


@pytest.mark.parametrize(("target", "why"), [
    ("", "it is a directory"),
    ("missing/a.json", "there is no directory '{tmp}/missing'"),
    ("file/a.json", "'{tmp}/file' is not a directory"),
    ("file/deep/a.json", "there is no directory '{tmp}/file/deep'"),
    ("a\0b.json", "the name holds a NUL byte"),
    ("n" * 300, "file name too long"),
    ("loop", "too many levels of symbolic links"),
])
def test_targets_are_checked_before_anything_is_done(tmp_path: Path, target: str,
                                                     why: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = sorted(tmp_path.iterdir())
    path = f"{tmp_path}/{target}"
    for attempt in (lambda: check_target(path), lambda: write_bytes(path, b"x")):
        with pytest.raises(OutputError) as caught:
            attempt()
        assert str(caught.value) == f"cannot write {path!r}: {why.format(tmp=tmp_path)}"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("name", "mode", "why"), [
    ("new.json", 0o555, "no permission to create files in"),
    ("old.json", 0o755, "no permission to change it"),
])
def test_permissions_are_checked_as_the_system_grants_them(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, mode: int, why: str) -> None:
    (tmp_path / "old.json").touch(0o444)
    tmp_path.chmod(mode)

    def access(path: str | Path, wanted: int) -> bool:
        # Root may do everything, so that the test asks the mode bits instead.
        return bool(Path(path).stat().st_mode & (wanted << 6) == wanted << 6)

    monkeypatch.setattr(output.os, "access", access)
    with pytest.raises(OutputError, match=why):
        check_target(str(tmp_path / name))
    tmp_path.chmod(0o755)


def test_good_targets_pass_and_nothing_is_created(tmp_path: Path) -> None:
    check_target("-")
    check_target(str(tmp_path / "a.json"))
    check_target(str(tmp_path / "a.PNG"), [".png", ".svg"])
    assert list(tmp_path.iterdir()) == []


def test_suffixes_and_standard_output_may_be_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"the name must end in one of \.pdf, \.png$"):
        check_target(str(tmp_path / "a.gif"), [".png", ".pdf"])
    with pytest.raises(OutputError, match="needs a file name"):
        check_target("-", stdout=False)


def test_two_options_may_not_share_a_target_nor_take_the_input(tmp_path: Path) -> None:
    source = tmp_path / "t.yaml"
    source.touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    check_targets({"--json": str(tmp_path / "a"), "--csv": "-", "--plot": None, "--trace": None},
                  inputs=[str(source)])
    with pytest.raises(OutputError, match=r"--csv .*already the target of --json"):
        check_targets({"--json": str(tmp_path / "a"), "--csv": str(tmp_path / "link")})
    with pytest.raises(OutputError, match="--csv '-': it is already the target of --json"):
        check_targets({"--json": "-", "--csv": "-"})
    with pytest.raises(OutputError, match=r"--trace .*already the input file"):
        check_targets({"--trace": f"{tmp_path}/./t.yaml"}, inputs=[str(source)])
