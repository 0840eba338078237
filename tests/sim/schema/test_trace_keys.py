"""Keys of execution traces that stand for a workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sim import run
from tests.sim.answer.test_traced import file
from tests.support.cluster_files import topology, write

if TYPE_CHECKING:
    from pathlib import Path

WRONG = {
    "a missing model": ({"batch": 1}, "workload.model: is missing and has no default"),
    "a missing batch": ({"model": "vgg16"}, "workload.batch: is missing and has no default"),
    "a model beside it": ({"trace": "traces/t", "model": "vgg16"},
                          "workload.model: has no meaning beside trace"),
    "no traces": ({"trace": "traces/u"}, "there are no traces of this name"),
    "a wrong key": ({"trace": {"prefix": "traces/t", "dep": "data"}}, "did you mean 'deps'?"),
    "no text": ({"trace": 3}, "workload.trace: found 3"),
    "no groups": ({"trace": {"prefix": "traces/t", "groups": "g.json"}}, "g.json"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_workload_is_one_sentence(tmp_path: Path, case: str) -> None:
    workload, says = WRONG[case]
    file(tmp_path)
    path = write(tmp_path, topology(hosts=4, workload=workload))
    found = CliRunner().invoke(run.main, [str(path), "--json", str(tmp_path / "a.json")])
    assert found.exit_code == 2
    assert says in found.output
    assert found.output.count("\n") == 1
    assert not (tmp_path / "a.json").exists()
