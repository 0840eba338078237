"""Bad files: each gets one sentence with its position, key, what was found and what is allowed.

The first line of every file under ``bad/`` is the sentence that a user must read, less the file's
name; ``...`` stands for lists that grow with what is shipped.
"""

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sim.schema import TopologyError, exit_on_error, load
from sim.schema.source import MAX_BYTES
from tests.support import ROOT

BAD = ROOT / "tests" / "data" / "bad"
GOOD = (ROOT / "tests" / "data" / "good" / "small.yaml").read_text()


def refusal(path: Path) -> TopologyError:
    with pytest.raises(TopologyError) as caught:
        load(path)
    return caught.value


@pytest.mark.parametrize("path", sorted(BAD.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_bad_file_gets_the_sentence_in_its_first_line(path):
    expected = path.read_text().splitlines()[0].removeprefix("# ")
    pattern = re.escape(f"{path}:{expected}").replace(re.escape("..."), ".*")
    assert re.fullmatch(pattern, str(refusal(path)))


def test_there_are_many_bad_files():
    assert len(list(BAD.glob("*.yaml"))) >= 100


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


@pytest.mark.parametrize(("data", "where", "says"), [
    (b"", ":1:1", "the file is empty"),
    (b"# only a comment\n", ":2:1", "the file is empty"),
    (b"---\n...\n", ":2:1", "the file does not start with a mapping"),
    (b"name: a\nhosts: \xff\n", ":2:8", "a byte that is not UTF-8"),
    (b"name: a\nho\0sts: 1\n", ":2:3", "a NUL byte"),
    (b"name: a\x01\n", ":1:8", "the control character '\\x01'"),
    (b"\xff\xfen\0a\0m\0e\0", ":1:1", "a byte that is not UTF-8"),
    (b"\x7fELF\x02\x01\x01" + bytes(64), ":1:1", "the control character"),
    (b"name: {" * 5000, "", "nested too deeply"),
    (b"- " * 100_000, "", "the file does not start with a mapping"),
    (b"name: " + b"- " * 100_000, "", "is not YAML"),
    (b"name: a\n" * 5, ":2:1", "key 'name' stands twice"),
    (b"#" * (MAX_BYTES + 1), "", "the file is too large; allowed: at most 4 MiB"),
], ids=range(13))
def test_a_file_that_is_no_text_or_no_yaml_is_refused_with_its_place(tmp_path, data, where, says):
    path = tmp_path / "x.yaml"
    path.write_bytes(data)
    error = refusal(path)
    assert str(error).startswith(f"{path}{where}:")
    assert says in str(error)


def test_a_directory_a_missing_file_and_an_odd_name_are_refused(tmp_path):
    assert str(refusal(tmp_path)) == f"{tmp_path}: is a directory; allowed: a YAML file"
    missing = tmp_path / "none.yaml"
    assert str(refusal(missing)) == f"{missing}: cannot be read: No such file or directory"
    assert "cannot be read" in str(refusal(tmp_path / "a\0b"))
    (tmp_path / "fabrics").mkdir()
    there = tmp_path / "fabrics" / "four-hosts.yaml"
    there.write_text("hosts: []")
    for misspelt in ("fabrics/four-host.yaml", "fabric/four-hosts.yaml"):
        assert str(refusal(tmp_path / misspelt)).endswith(f"; did you mean {str(there)!r}?")
    assert "cannot be read" in str(refusal(tmp_path / ("long" * 100)))


def test_an_endless_device_is_refused_like_a_huge_file():
    assert "too large" in str(refusal(Path("/dev/zero")))


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


def test_shared_values_are_blamed_where_they_are_written(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("latency: 5us", "latency: &t 5")
                    .replace("{template: single-switch}",
                             "{template: single-switch, latency: *t}"))
    error = refusal(path)
    assert (error.line, error.column, error.more) == (6, 38, 1)


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


def test_yaml_itself_agrees_that_most_bad_files_are_yaml():
    """The files are bad as topologies, not merely unparsable: the schema has to find it."""
    parsed = 0
    for path in BAD.glob("*.yaml"):
        if not path.stem.startswith("yaml-"):
            yaml.safe_load(path.read_text())
            parsed += 1
    assert parsed >= 80


def test_a_refusal_comes_back_whole_from_a_worker(tmp_path):
    """Cases run in processes of their own, and the user still gets the sentence."""
    path = tmp_path / "t.yaml"
    path.write_text(GOOD.replace("scenarios:", "scenario:"))
    error = refusal(path)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.line, again.key, again.found) == (
        str(error), error.line, error.key, error.found)
