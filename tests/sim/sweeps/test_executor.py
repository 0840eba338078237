"""Executors of points: this machine's cores."""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING

import pytest

from sim.sweeps.executor import each_answer, each_outcome
from sim.sweeps.study import Study
from tests.support.cluster_files import topology, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("workers", [1, 2])
def test_every_task_has_one_answer(workers: int) -> None:
    tasks = [(f"t{number}", number) for number in range(7)]
    assert sorted(each_answer(add, 10, tasks, workers)) == list(range(10, 17))


def test_no_task_has_no_answer() -> None:
    assert not list(each_answer(add, 10, [], dask="tcp://192.0.2.1:1"))


def test_points_run_from_any_folder_and_a_refused_one_is_an_outcome(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, topology())
    monkeypatch.chdir(tmp_path)
    study = Study("t.yaml", (tmp_path / "t.yaml").read_bytes())
    points = [("good", ("workload.batch=2",)), ("bad", ("workload.batch=0",))]
    found = {outcome.key: outcome for outcome in each_outcome(study, points, workers=1)}
    assert found["good"].changes == ("workload.batch=2",)
    assert (len(found["good"].rows), found["good"].error) == (1, None)
    assert found["bad"].rows == ()
    assert "workload.batch: found 0" in str(found["bad"].error)
