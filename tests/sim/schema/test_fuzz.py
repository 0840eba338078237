"""Any content of a file gives a topology or a TopologyError from `load`, which never hangs."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.schema import Topology, TopologyError, load
from tests.support import ROOT
from tests.support.json_changes import anything, changed, places

FOLDER = ROOT / "tests" / "data" / "good"
GOOD = [path.read_text() for path in sorted(FOLDER.glob("*.yaml"))]
NO_HANG = settings(deadline=timedelta(seconds=60), max_examples=150,
                   suppress_health_check=[HealthCheck.function_scoped_fixture,
                                          HealthCheck.too_slow])
PIECES = ["", ":", "{", "}", "[", "]", "- ", "&a ", "*a", "<<: ", "? ", "!!str ", "|", ">", "'",
          '"', "#",
          "\n", "\n---\n", "\t", "0", "-1", "1e999", "null", "~", "true", "25Gbps", "0s", "%",
          "name: ", "hosts", "on", "\u2028", "\x85", "\U0001f600", "%YAML 3.0\n", "...", ","]


def outcome(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        answer: object = load(path)
    except TopologyError as error:
        answer = str(error)
    if not isinstance(answer, Topology):
        assert str(answer).startswith(str(path))
        assert "\n" not in str(answer)


@NO_HANG
@given(data=st.binary(max_size=400))
def test_random_bytes(tmp_path, data):
    outcome(tmp_path / "x.yaml", data)


@NO_HANG
@given(pieces=st.lists(st.sampled_from([*PIECES, "a", "b: ", " "]), max_size=40))
def test_random_yaml(tmp_path, pieces):
    outcome(tmp_path / "x.yaml", "".join(pieces).encode())


@NO_HANG
@given(text=st.sampled_from(GOOD), edits=st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(PIECES)),
    min_size=1, max_size=4))
def test_good_files_with_edits(tmp_path, text, edits):
    for place, gone, put in edits:
        start = int(place * len(text))
        text = text[:start] + put + text[start + gone:]
    outcome(tmp_path / "x.yaml", text.encode())


PLAIN = [load(path).model_dump(mode="json", by_alias=True, exclude_unset=True)
         for path in sorted(FOLDER.glob("*.yaml"))]
PLACES = [(index, path) for index, plain in enumerate(PLAIN) for path in places(plain)]


@NO_HANG
@given(place=st.sampled_from(PLACES), value=anything)
def test_good_files_with_any_value_at_any_place(tmp_path, place, value):
    index, path = place
    plain = changed(PLAIN[index], *path, value=value)
    outcome(tmp_path / "x.yaml", json.dumps(plain, ensure_ascii=False).encode(errors="replace"))


@pytest.mark.parametrize("text", [
    "a: &a [x]\n" + "".join(f"b{i}: &a [*a, *a]\n" for i in range(60)),
    "<<: &a {k: v}\n" + "".join(f"b{i}: &b{i} {{<<: *a, k{i}: *a}}\n" for i in range(2000)),
    "a: &a {k: v}\n" + "b: {<<: [" + "*a, " * 50_000 + "*a]}\n",
    "faults: [{name: f, kind: link-down, at: 0s, link: " + "-" * 1_000_000 + "}]\n",
    "name: " + "9" * 1_000_000,
    "name: '" + "x" * 1_000_000 + "'",
    "? " * 10_000,
    "x: " + "[" * 100_000,
], ids=["aliases", "merges", "merge-list", "hyphens", "digits", "letters", "keys", "brackets"])
def test_files_made_to_be_slow_end_in_an_error(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(TopologyError):
        load(path)


def test_sizes_made_to_be_huge_end_in_an_error(tmp_path):
    path = tmp_path / "x.yaml"
    group = GOOD[-1].split("hosts:\n")[1].split("fabric:")[0]
    groups = "".join(group.replace("name: h", f"name: h{i}").replace("count: 2\n", "count: 60000\n")
                     for i in range(200))
    path.write_text(GOOD[-1].replace(group, groups))
    with pytest.raises(TopologyError, match="12000000 hosts; allowed: at most 65536"):
        load(path)
