"""The progress bar: seen on a terminal, silent elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from sim.answer.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Call it in the test: pytest sets its own standard error between fixtures and tests."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return stream


def test_a_terminal_sees_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch)
    with progress(3, "simulating [x]") as advance:
        advance()
        advance(2, "ring, 4 MiB")
    text = stream.getvalue()
    assert "simulating [x]: ring, 4 MiB" in text
    assert "3/3" in text


def test_quiet_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch)
    with progress(3, "simulating", quiet=True) as advance:
        advance()
    assert stream.getvalue() == ""


def test_a_file_sees_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(3, "simulating") as advance:
        advance(1, "x")
    assert capsys.readouterr() == ("", "")


def test_lasting_work_says_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch)
    with progress(4, "sweep", lasting=True) as advance:
        advance()
    assert "left" in stream.getvalue()


def test_a_log_sees_a_line_at_each_tenth_of_lasting_work(
        capsys: pytest.CaptureFixture[str]) -> None:
    with progress(40, "sweep", lasting=True) as advance:
        for _ in range(40):
            advance()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("sweep: 4 of 40, about ")
    with progress(40, "sweep", lasting=True, quiet=True) as advance:
        advance(40)
    assert capsys.readouterr() == ("", "")


def test_standard_output_stays_clean(monkeypatch: pytest.MonkeyPatch,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    stream = terminal(monkeypatch)
    with progress(1, "simulating") as advance:
        advance()
    assert stream.getvalue()
    assert capsys.readouterr().out == ""


def test_an_error_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    with pytest.raises(KeyError), progress(1, "simulating"):
        raise KeyError("x")
