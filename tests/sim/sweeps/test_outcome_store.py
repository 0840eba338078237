"""A folder of outcomes by their key."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harp.cli.io import OutputError
from sim.sweeps.outcome_store import Store
from sim.sweeps.study import Outcome
from tests.support.levels import draws

if TYPE_CHECKING:
    from pathlib import Path

KEY = "ab" * 32
CELLS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
DONE = Outcome(KEY, ("workload.batch=8",), (("s", 8, 1.5, None),))


@settings(max_examples=draws(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=5), max_size=2).map(tuple),
       st.lists(st.lists(CELLS, max_size=3).map(tuple), max_size=2).map(tuple),
       st.none() | st.text(max_size=9))
def test_an_outcome_comes_back_as_it_was_kept(tmp_path: Path, changes, rows, error) -> None:
    outcome = Outcome(KEY, changes, rows, error)
    Store(tmp_path / "s").put(outcome)
    assert Store(tmp_path / "s").get(KEY) == outcome


def test_a_key_that_was_never_kept_is_absent(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    store.put(DONE)
    assert store.get("cd" * 32) is None
    assert store.get(KEY) == DONE


@pytest.mark.parametrize("text", ["", "{", "[]", "3", json.dumps({"key": KEY}), '{"key": "other"}'])
def test_a_file_that_is_no_outcome_of_its_key_counts_as_absent(tmp_path: Path, text: str) -> None:
    store = Store(tmp_path)
    store.put(DONE)
    (path,) = tmp_path.rglob("*.json")
    path.write_text(text)
    assert store.get(KEY) is None
    store.put(DONE)
    assert store.get(KEY) == DONE


def test_a_whole_outcome_of_another_key_counts_as_absent(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(DONE)
    (path,) = tmp_path.rglob("*.json")
    path.write_text(path.read_text().replace(KEY, KEY[:-1] + "c"))
    assert store.get(KEY) is None


def test_a_folder_that_cannot_be_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        Store(tmp_path / "file" / "s")
