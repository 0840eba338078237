"""A click command: each mistake of its user is one sentence with a status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from lab.namespace import LabError
from sim.command import plain_command, set_option
from sim.network.interface import NetworkError
from sim.schema import Problem, TopologyError

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def ended(says: object, *words: str) -> Result:
    """Run a command that raises, or gives, ``says``."""
    @plain_command
    @click.option("--count", type=click.IntRange(1, 3))
    def command(count: int | None) -> object:
        if isinstance(says, BaseException):
            raise says
        return says

    return CliRunner().invoke(command, list(words))


@pytest.mark.parametrize(("error", "status", "sentence"), [
    (click.UsageError("give a file"), 2, "give a file"),
    (TopologyError("x.yaml", Problem("is odd"), 3, 1), 2, "x.yaml:3:1: is odd"),
    (NetworkError("no path"), 2, "no path"),
    (LabError("no root"), 2, "no root"),
    (OSError(28, "No space left on device"), 1, "standard output: No space left on device"),
    (TopologyError("x.yaml", Problem("a \x1b[31m red")), 2, "x.yaml: a \\x1b[31m red")])
def test_a_mistake_is_one_sentence_on_standard_error(error: Exception, status: int,
                                                     sentence: str) -> None:
    done = ended(error)
    assert (done.exit_code, done.stdout) == (status, "")
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_interrupted_command_ends_as_a_shell_expects() -> None:
    done = ended(KeyboardInterrupt())
    assert done.exit_code == 130
    assert "Traceback" not in done.output


def test_a_bug_is_no_mistake_of_the_user() -> None:
    assert isinstance(ended(ValueError("a bug")).exception, ValueError)


@pytest.mark.parametrize(("value", "status"), [(None, 0), (0, 0), (1, 1), ("text", 0)])
def test_a_number_that_the_command_gives_is_its_status(value: object, status: int) -> None:
    done = ended(value)
    assert (done.exit_code, done.output) == (status, "")


@pytest.mark.parametrize(("words", "says"), [
    (["--cuont", "1"], "--count"), (["--count", "4"], "1<=x<=3"), (["more"], "more")])
def test_wrong_options_are_named(words: list[str], says: str) -> None:
    done = ended(None, *words)
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_has_a_short_name(word: str) -> None:
    done = ended(None, word)
    assert done.exit_code == 0
    assert "--count" in done.stdout
    assert "--version" in done.stdout


def changes(*words: str) -> Any:
    """Give what the command has under ``--set``."""
    @plain_command
    @set_option("Change a value")
    def command(changes: tuple[str, ...]) -> None:
        click.echo("\n".join(changes), nl=False)

    done = CliRunner().invoke(command, [part for word in words for part in ("--set", word)])
    assert done.exit_code == 0, done.output
    return done.stdout.split("\n")


def test_a_path_that_is_set_is_completed_where_it_names_something(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("config.json", "gpt2", "t.0.et", "groups.json"):
        (tmp_path / name).write_text("")
    assert changes("workload.model=config.json", "jobs[0].workload.model=config.json",
                   "workload.trace=t", "workload.trace.groups=groups.json") == [
        f"workload.model={tmp_path}/config.json", f"jobs[0].workload.model={tmp_path}/config.json",
        f"workload.trace={tmp_path}/t", f"workload.trace.groups={tmp_path}/groups.json"]
    same = ["workload.model=gpt2", "workload.model=other.json", "workload.trace=u",
            "name=config.json", "workload.batch=8", "seed", "workload.model=" + 5000 * "x/"]
    assert changes(*same) == same
