"""A wrong file or option is exit code 2 and one sentence in every command; 1 is a verdict."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harp.cli.main import COMMANDS
from harp.reading import read_bytes
from tests.support import PATIENCE_S
from tests.support.levels import long_except

if TYPE_CHECKING:
    from tests.harp.cli.conftest import HarpHere

BAD_FILES = ["{missing}", "{folder}", "{junk}", "{binary}", "{empty}", "{fifo}", "{long}"]
TAKES_FILE = ["decode", "diagnose", "plan", "env --plan", "probe --plan", "run -np 2 {} ",
              "run -np 2 --hostfile {} true", "sim run", "sim validate",
              "sim run {good} --collective allreduce --sizes 8 --tuned"]
"""Where a file is read: at the end, or where the braces are."""

WRONG = [
    "nosuch",
    "check --bogus", "check extra", "check --topology --json",
    "perf", "perf --local --port bogus", "perf --local --address 300",
    "perf --local --interface nosuch", "perf --local --port xdp", "perf --local --mtu 3 --sizes 8",
    "perf --local --cpu 4000 --sizes 8 --seconds 0.01", "perf --handle zz",
    "perf --handle 00", "perf no.such.host.invalid", "perf --local --faults xx",
    "perf --local --sizes 8:x", "perf --serve --control 99999", "perf --serve --address 9.9.9.9",
    "top --bogus", "top x", "top --export 127.0.0.1:1x", "top --export {missing}/x",
    "top --interval nan --export {junk}", "top --interval inf --export {junk}",
    "top --export " + "9" * 5000, "diagnose --snapshot {junk} --seconds nan",
    "perf --local --seconds nan", "perf --local --sizes " + "9" * 5000,
    "perf --local --cpu 99999999999999999999", "perf --local --cpu -7", "perf --local --mtu -5",
    "perf a..b", "perf " + "a" * 300, "probe 127.0.0.1 --seconds nan",
    "probe 127.0.0.1 --fingerprint --most-bps nan",
    "run -np 100000000 true", "run -H localhost:100000000 true", "run -H a:" + "9" * 5000 + " true",
    "diagnose --snapshot {missing}/x", "diagnose node-1:99999", "diagnose --serve 1x",
    "decode {junk} --secret zz", "decode {junk} --secret 00",
    "setup --nics nosuch", "setup --nics a..b", "setup --mtu 1", "setup --undo --mtu 1500",
    "setup --dry-run --queues 0",
    "probe", "probe --ports x 10.0.0.1", "probe bogus",
    "plan", "plan {junk} -o {missing}/x",
    "run -np 2 {script}", "run -np 2 {lost}", "recompiles {script}", "recompiles {lost}",
    "run", "run -np 0 true", "run -np 2 nosuchprogram", "run -np 2 -H a:0 true",
    "run -np 3 -H localhost:2 true", "run --address no.such.invalid -np 2 true",
    "recompiles", "recompiles --bogus",
    "env --bogus", "plugin-path extra", "sim", "sim rum", "sim run --bogus",
    *(words.format(file) if "{}" in words else f"{words} {file}"
      for words in TAKES_FILE for file in BAD_FILES),
]
LONG = [f"{words} {file}" for words in TAKES_FILE if words.startswith("sim ")
        for file in BAD_FILES if file not in ("{missing}", "{junk}", "{fifo}")]
"""Files for the simulator's commands, each a process: all are read by what reads topologies too."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    named = {name: folder / name for name in ("missing", "folder", "junk", "binary", "empty")}
    named["folder"].mkdir()
    named["fifo"] = folder / "fifo"  # to which nobody writes
    os.mkfifo(named["fifo"])
    for name, line in (("script", "true"), ("lost", "#!/no/such/interpreter")):
        named[name] = folder / name
        named[name].write_text(f"{line}\n")
        named[name].chmod(0o755)
    named["long"] = folder / ("x" * 300)
    named["good"] = Path("tests/data/good/small.yaml").absolute()
    named["junk"].write_text("{junk")
    named["binary"].write_bytes(b"\xff\xfe\0junk" * 9)
    named["empty"].write_text("")
    return named


def run_harp(words: list[str], **environment: str) -> tuple[int, str]:
    """Run the command as a process; give its status and what it wrote to stderr."""
    done = subprocess.run([sys.executable, "-m", "harp.cli.main", *words], capture_output=True,
                          text=True, check=False, timeout=PATIENCE_S,
                          env={**os.environ, **environment})
    return done.returncode, done.stderr


def check_sentence(status: int, error: str) -> None:
    assert status == 2, error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not any(word in error for word in ("Traceback", "Errno", "fromhex", "codec"))


@pytest.mark.parametrize("words", long_except(WRONG, *(set(WRONG) - set(LONG))))
def test_wrong_input_is_exit_code_2(words: str, files: dict[str, Path],
                                    harp_here: HarpHere) -> None:
    before = sorted(files["folder"].parent.iterdir())
    arguments = words.format(**files).split()
    if arguments[0] == "sim":  # which runs a module as __main__, so that it must not be loaded
        status, error = run_harp(arguments)
    else:
        done = harp_here(*arguments)
        status, error = done.returncode, done.stderr
    check_sentence(status, error)
    assert sorted(files["folder"].parent.iterdir()) == before


def test_the_interpreter_that_is_missing_is_what_is_said(files: dict[str, Path]) -> None:
    assert "the interpreter in its first line is not there" in run_harp(
        ["run", "-np", "1", str(files["lost"])])[1]
    assert "the first line of a script is #!" in run_harp(["recompiles", str(files["script"])])[1]


@pytest.mark.parametrize("text", [None, "no line", "HARP_CONF_FILE=x", "HARP_PATHS=many"])
def test_a_wrong_settings_file_is_exit_code_2(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "harp.conf"
    if text is not None:
        file.write_text(f"{text}\n")
    check_sentence(*run_harp(["env"], HARP_CONF_FILE=str(file)))


def test_a_settings_file_or_table_that_is_a_pipe_is_not_waited_for(files: dict[str, Path]) -> None:
    assert run_harp(["env"], HARP_CONF_FILE=str(files["fifo"])) == (0, "")  # as an empty file
    check_sentence(*run_harp(["run", "-np", "1", "true"], HARP_TUNER=str(files["fifo"])))


def test_a_small_file_takes_little_memory(files: dict[str, Path]) -> None:
    tracemalloc.start()
    read_bytes(files["junk"])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10 << 20


def test_a_sentence_repeats_no_control_characters_and_no_endless_words() -> None:
    status, error = run_harp(["sim", "\33[31m" + "x" * 9000])
    check_sentence(status, error)
    assert error[:-1].isprintable()
    assert len(error) < 300


@pytest.mark.parametrize("words", ["-m harp.cli.main check --json", "-m sim.compare {good} {good}",
                                   "-m sim.run {good} --draws 0"])
def test_a_full_disk_under_the_output_is_one_sentence(words: str, files: dict[str, Path]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, *words.format(**files).split()], stdout=full,
                              stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (
        1, ["error: standard output: No space left on device"])
    assert "Traceback" not in done.stderr


def test_every_command_is_asked() -> None:
    assert set(COMMANDS) <= {words.split()[0] for words in WRONG}
