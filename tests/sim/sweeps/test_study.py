"""Answers of a sweep's points, and what they depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sim.sweeps import study
from tests.sim.test_sweep import run, stored, sweep_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("what", ["topology", "draws", "scenario", "seed"])
def test_the_key_of_an_answer_has_all_that_it_depends_on(tmp_path: Path, what: str) -> None:
    run(sweep_file(tmp_path), "-o", tmp_path / "a.csv")
    changed: dict[str, dict[str, Any]] = {"draws": {"draws": 2}, "scenario": {"scenarios": ["s"]},
                                          "seed": {"set": {"seed": 9}}, "topology": {}}
    sweep = sweep_file(tmp_path, **changed[what])
    if what == "topology":
        with (tmp_path / "t.yaml").open("a") as file:
            file.write("seed: 9\n")
    run(sweep, "-o", tmp_path / "b.csv")
    assert len(stored(tmp_path)) == 12


def test_a_file_that_a_value_names_counts_with_its_content(tmp_path: Path) -> None:
    def key(content: str) -> str:
        (tmp_path / "config.json").write_text(content)
        study._file_digest.cache_clear()
        study._named_files.cache_clear()
        return study.Study(str(tmp_path / "t.yaml"), b"name: t").key(["workload.model=config.json"])

    assert key("{}") == key("{}")
    assert key("{}") != key("[]")
