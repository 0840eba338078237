"""A command as a program of its own: its status, and one sentence of a failure."""

import errno
import os

import click
import pytest

from harp.cli.standalone import run_program
from harp.net.errors import OpenError


def raising(error):
    @click.command()
    def command():
        raise error

    return command


@pytest.mark.parametrize(("error", "status", "said"), [
    (click.UsageError("no such thing"), 2, "error: no such thing\n"),
    (click.ClickException("it failed"), 1, "error: it failed\n"),
    (OpenError.of(-errno.ENODEV, "there is no eth9"), 1, "error: there is no eth9\n"),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a.json"), 1,
     "error: a.json: No space left on device\n"),
    (click.ClickException("two\nlines \33[31m"), 1, "error: two lines \\x1b[31m\n"),
    (KeyboardInterrupt(), 130, ""), (BrokenPipeError(), 1, "")])
def test_a_failure_is_a_status_and_a_sentence(capsys, monkeypatch, error, status, said):
    monkeypatch.setattr("sys.argv", ["program"])
    with pytest.raises(SystemExit) as ended:
        run_program(raising(error), "program")
    assert (ended.value.code, capsys.readouterr().err.lstrip("\n")) == (status, said)


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (3, 3), ("text", 0)])
def test_a_number_that_a_command_returns_is_its_status(monkeypatch, returned, status):
    monkeypatch.setattr("sys.argv", ["program"])
    with pytest.raises(SystemExit) as ended:
        run_program(click.command()(lambda: returned), "program")
    assert ended.value.code == status
