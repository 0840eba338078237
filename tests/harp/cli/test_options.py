"""Numbers and programs that a command is given."""

import subprocess

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.cli.options import Number, starting, whole


@pytest.mark.parametrize(("text", "sentence"), [
    ("nan", "'nan' is not a number"), ("1e9", "is not in the range"), ("x", "is not a valid")])
def test_a_number_is_within_its_bounds_or_one_sentence(text, sentence):
    @click.command()
    @click.argument("number", type=Number(0, 10))
    def command(number):
        click.echo(number)

    assert CliRunner().invoke(command, ["2.5"]).output == "2.5\n"
    done = CliRunner().invoke(command, [text])
    assert (done.exit_code, sentence in done.output) == (2, True)


@settings(max_examples=30)
@given(st.integers(0, 10**18 - 1), st.text("0179 .-_x\u0663", max_size=5))
def test_digits_alone_are_a_whole_number(number, text):
    assert whole(str(number)) == number
    if not (text.isascii() and text.isdigit()):
        assert whole(text) is None
    assert whole(f"{number}.0") is whole(f"-{number}") is whole("1" * 19) is None


@pytest.mark.parametrize(("content", "mode", "sentence"), [
    ("#!/nowhere/sh\n", 0o755, "the interpreter in its first line is not there"),
    ("no script\n", 0o755, "is neither a program of this machine nor a script"),
    (None, 0, "cannot be started: no such file or directory"),
    ("#!/bin/sh\n", 0o644, "cannot be started: permission denied")])
def test_a_program_that_does_not_start_says_why(tmp_path, content, mode, sentence):
    program = tmp_path / "program"
    if content is not None:
        program.write_text(content)
        program.chmod(mode)
    with pytest.raises(click.UsageError, match=sentence), starting(str(program)):
        subprocess.run([program], check=False)
