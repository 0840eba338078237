"""Errors of input files: where, what was found, what is allowed."""

import pickle
import subprocess
import sys

import pytest

from sim.schema import TopologyError, exit_on_error, load
from tests.sim.schema.test_bad_files import GOOD, refusal


def test_an_error_is_a_value_error():
    assert issubclass(TopologyError, ValueError)


def test_an_error_carries_its_parts(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("stack: kernel-tcp", "stack: kernel-tpc"))
    error = refusal(path)
    assert (error.file, error.line, error.column) == (str(path), 11, 24)
    assert (error.key, error.found, error.nearest) == (
        "scenarios[0].stack", "kernel-tpc", "kernel-tcp")
    assert "rdma" in error.allowed


@pytest.mark.parametrize(("right", "misspelt", "where"), [
    ("template: single", "templte", "fabric.template"),
    ("model: vgg16", "modle", "workload.model")])
def test_a_needed_key_that_is_misspelt_is_named(tmp_path, right, misspelt, where):
    path = tmp_path / "x.yaml"
    value = right.partition(":")[2]
    assert right in GOOD
    path.write_text(GOOD.replace(right, f"{misspelt}:{value}"))
    assert f"{where}: is missing and has no default, but '{misspelt}' is there" in str(
        refusal(path))


def test_the_first_problem_in_the_file_is_named_and_the_others_are_counted(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("25Gbps", "25").replace("vgg16", "7").replace("2\n", "0\n"))
    error = refusal(path)
    assert (error.key, error.line, error.more) == ("hosts[0].count", 4, 2)
    assert str(error).endswith("and 2 more problems")


def test_thousands_of_problems_are_one_sentence(tmp_path):
    path = tmp_path / "x.yaml"
    nics = ", ".join(["{nmae: eth, rate: 25}"] * 20_000)
    path.write_text(GOOD.replace("{name: eth, rate: 25Gbps}", nics))
    assert len(str(refusal(path))) < 400


def test_what_was_found_is_shown_short_and_without_control_characters(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("single-switch", '"\\e[31m' + "x" * 5000 + '"'))
    text = str(refusal(path))
    assert len(text) < 400
    assert text.isprintable()


def test_exit_on_error_prints_one_line_and_exits_with_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught, exit_on_error():
        load(tmp_path)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: {tmp_path}: is a directory; allowed: a YAML file\n")


def test_exit_on_error_survives_a_terminal_that_knows_ascii_only(tmp_path):
    code = ("import sys; from pathlib import Path; from sim.schema import exit_on_error, load\n"
            "with exit_on_error(): load(Path(sys.argv[1]))")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "größe.yaml")],
                          env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"},
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_refusal_comes_back_whole_from_a_worker(tmp_path):
    """Cases run in processes of their own, and the user still gets the sentence."""
    path = tmp_path / "t.yaml"
    path.write_text(GOOD.replace("scenarios:", "scenario:"))
    error = refusal(path)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.line, again.key, again.found) == (
        str(error), error.line, error.key, error.found)
