"""``python -m sim.trace``: its answer and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sim.traces.chakra_format import COLL, Node
from tests.sim.traces.test_replay import AR, MIB, collective, compute, invoke, save
from tests.support.cluster_files import topology, write

if TYPE_CHECKING:
    from pathlib import Path


def test_the_command_says_when_each_rank_is_done(tmp_path: Path) -> None:
    path, answer = write(tmp_path, topology(hosts=2)), tmp_path / "out.json"
    nodes = [compute(1, 100), collective(2, "all-reduce", MIB, 1)]
    nodes[1] = Node(2, "ar", COLL, (99,), (1,), attributes=nodes[1].attributes)
    done = invoke(save(tmp_path, nodes, nodes), "--topology", path, "--json", answer)
    assert done.exit_code == 0, done.output
    assert "2 control dependencies name nodes that are not there" in done.stderr
    document = json.loads(answer.read_text())
    assert document["dropped_ctrl_deps"] == 2
    for rank in document["ranks"]:
        assert rank["compute_us"] == pytest.approx(100)
        assert rank["total_us"] == pytest.approx(100 + rank["exposed_us"])
        assert f"{rank['total_us']:.1f}" in done.stdout


def test_a_scenario_that_a_replay_cannot_do_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, topology(hosts=2, scenario={"routing": "plan"}))
    done = invoke(save(tmp_path, [AR], [AR]), "--topology", path)
    assert done.exit_code == 2
    assert "scenarios[0].routing" in done.stderr
