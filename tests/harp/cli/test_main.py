"""The command ``harp``: its subcommands, and how it ends."""

import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from harp.cli.main import COMMANDS, harp
from tests.support import PATIENCE_S

HARP = [sys.executable, "-m", "harp.cli.main"]


def run(*arguments):
    return subprocess.run([*HARP, *arguments], capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_subcommand_says_what_it_does(command):
    result = CliRunner().invoke(harp, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage: " in result.output
    assert command in CliRunner().invoke(harp, ["--help"]).output


@pytest.mark.parametrize(("word", "beginning"), [
    ("-h", "Usage: "), ("--help", "Usage: "), ("--version", "harp-stack ")])
def test_help_and_version_have_their_usual_names(word, beginning):
    result = CliRunner().invoke(harp, [word])
    assert result.exit_code == 0
    assert result.output.startswith(beginning)


@pytest.mark.parametrize("arguments", [["top", "--export"],
                                       ["diagnose", "--token-file", "token", "--serve"]])
def test_a_port_that_is_taken_is_named(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    token = tmp_path / "token"
    token.write_text("a token that is long enough to be one\n")
    token.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(*arguments, f"127.0.0.1:{port}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (f"error: cannot listen on TCP port {port} of 127.0.0.1: Address "
                           "already in use\n")


@pytest.mark.parametrize(("arguments", "status", "sentence"), [
    (["chekc"], 2, "No such command 'chekc'. Did you mean 'check'?"),
    (["probe", "127.0.0.1", "-o", "/nonexistent/map.json"], 2,
     "cannot write '/nonexistent/map.json': there is no directory '/nonexistent'"),
    (["diagnose", "--snapshot", "/nonexistent/a.json"], 2, "there is no directory '/nonexistent'"),
    (["top", "--export", "/nonexistent/a.prom"], 2, "there is no directory '/nonexistent'"),
    (["top", "1"], 1, "process 1 runs no engine that this user sees; "),
    (["top", "1", "--json"], 1, "process 1 runs no engine"),
    (["run", "nosuchprog"], 2, "there is no program 'nosuchprog' in PATH"),
    (["run", "pyhton", "a.py"], 2, "'pyhton' in PATH; did you mean 'python'?"),
    (["run", "/dev"], 2, "'/dev' is a directory, not a program"),
    (["run", "-H", ",", "true"], 2, "',' names no host; write HOST:SLOTS"),
    (["run", "-H", "a.invalid:1", "true"], 2, "unknown host 'a.invalid'"),
    (["check", "--colour"], 2, "No such option"),
    (["perf"], 2, "name a HOST, or give one of --serve, --local and --handle"),
    (["perf", "a.invalid"], 2, "unknown host 'a.invalid'"),
    (["decode", "/nonexistent.pcap"], 2,
     "/nonexistent.pcap cannot be read: no such file or directory"),
])
def test_errors_are_a_sentence_and_a_status(harp_here, arguments, status, sentence):
    done = harp_here(*arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
