"""Files of execution traces, and the groups that they name."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from sim.traces.chakra_format import METADATA, Metadata, Node, Values, write_trace
from sim.traces.execution_trace import load_traces
from tests.sim.traces.test_replay import AR, MIB, collective, invoke, save
from tests.support.cluster_files import topology, write

if TYPE_CHECKING:
    from pathlib import Path


def test_groups_of_the_trace_are_read(tmp_path: Path) -> None:
    init = Node(9, "## process_group:init ##", METADATA, inputs=Values(
        json.dumps([{"pg_name": "7", "ranks": [0, 2]}, {"pg_name": "0", "ranks": []}])))
    member, other = [init, collective(1, "all-gather", MIB, group="7")], [init]
    save(tmp_path, member, other, member)
    trace = load_traces(tmp_path / "t", ranks=3)
    assert trace.members("7") == (0, 2)
    assert trace.members("0") == (0, 1, 2)


def test_one_file_may_be_for_all_ranks(tmp_path: Path) -> None:
    data = write_trace(Metadata("0.0.4"), [collective(1, "all-reduce", MIB)])
    (tmp_path / "all.et").write_bytes(gzip.compress(data))
    assert len(load_traces(tmp_path / "all", ranks=4).ranks) == 4


@pytest.mark.parametrize(("name", "content", "says"), [
    ("t.0.et", b"\x05", "cut off"), ("t.1.et", b"", "t.0.et is missing"),
    ("x.0.et", b"", "there are no traces of this name")])
def test_a_wrong_file_is_one_sentence(tmp_path: Path, name: str, content: bytes,
                                      says: str) -> None:
    path = write(tmp_path, topology(hosts=1))
    (tmp_path / name).write_bytes(content)
    done = invoke(tmp_path / "t", "--topology", path)
    assert done.exit_code == 2
    assert says in done.stderr


@pytest.mark.parametrize(("text", "says"), [
    ("[" * 200_000, "groups.json: is not JSON: nested too deeply"),
    ("[]", "groups.json: is no file of groups"),
    ('{"1": [0, 1], "1": [0]}', "groups.json: key '1' stands twice"),
    ('{"1": [true]}', "groups.json: the group '1' is true; allowed: a list of ranks below 2"),
    ('{"1": 5}', "groups.json: the group '1' is 5; allowed: a list of ranks below 2, each once"),
    ('{"1": [' + "0, " * 100_000 + "0]}", "is 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "
     "0, 0, 0, ...; allowed")])
def test_a_wrong_file_of_groups_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "groups.json").write_text(text)
    done = invoke(save(tmp_path, [AR], [AR]), "--topology", write(tmp_path, topology(hosts=2)),
                  "--groups", tmp_path / "groups.json")
    assert done.exit_code == 2
    assert says in done.stderr
    assert len(done.stderr) < 400


@pytest.mark.parametrize("text", ["[" * 5000, "5", '[{"pg_name": "1"}]',
                                  '[{"pg_name": "1", "ranks": [{}]}]'])
def test_a_node_without_its_groups_is_named(tmp_path: Path, text: str) -> None:
    node = Node(7, "## process_group:init ##", METADATA, inputs=Values(text))
    done = invoke(save(tmp_path, [node], [node]), "--topology", write(tmp_path, topology(hosts=2)))
    assert done.exit_code == 2
    assert "t.0.et: node 7 ('## process_group:init ##') holds no groups: " in done.stderr


@pytest.mark.parametrize("prefix", [".", "/"])
def test_a_folder_is_no_beginning_of_names(tmp_path: Path, prefix: str) -> None:
    done = invoke(prefix, "--topology", write(tmp_path, topology(hosts=2)))
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {prefix}: is a folder; allowed: the beginning of")
