"""Bad files: each gets one sentence with its position, key, what was found and what is allowed.

The first line of every file under ``bad/`` is the sentence that a user must read, less the file's
name; ``...`` stands for lists that grow with what is shipped.
"""

import re
from pathlib import Path

import pytest
import yaml

from sim.schema import TopologyError, load
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


def test_shared_values_are_blamed_where_they_are_written(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("latency: 5us", "latency: &t 5")
                    .replace("{template: single-switch}",
                             "{template: single-switch, latency: *t}"))
    error = refusal(path)
    assert (error.line, error.column, error.more) == (6, 38, 1)


def test_yaml_itself_agrees_that_most_bad_files_are_yaml():
    """The files are bad as topologies, not merely unparsable: the schema has to find it."""
    parsed = 0
    for path in BAD.glob("*.yaml"):
        if not path.stem.startswith("yaml-"):
            yaml.safe_load(path.read_text())
            parsed += 1
    assert parsed >= 80
