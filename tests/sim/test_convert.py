"""``python -m sim.convert``: its options and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

from sim.convert import main
from tests.sim.formats.test_nccl_topology import converted, host
from tests.support import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_options_of_another_format_are_refused(tmp_path: Path) -> None:
    converted(tmp_path, host())
    found = CliRunner().invoke(main, [str(tmp_path / "t.yaml"), str(tmp_path / "i.json"),
                                      "--hosts", "3"])
    assert found.exit_code == 2
    assert "--hosts is for files of nccl" in found.output


def test_a_target_that_is_a_folder_is_one_sentence(tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(main, [str(ROOT / "topologies" / "leaf-spine-2to1.yaml"), "."])
    assert (found.exit_code, "it is a directory" in found.stderr) == (2, True), found.stderr
