"""Keys without effect are named, and no others: each file lists its idle keys itself."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from sim.answer.answer import answer
from sim.answer.scenario import make_run
from sim.cluster.cluster import Cluster
from sim.run import main
from sim.schema import load
from tests.support.cluster_files import FREE, IDEAL, cluster, topology, write
from tests.support.levels import long_except
from tests.system.test_topologies import FOLDER, HUGE

QUICK = ["explicit-triangle", "horovod-p100-25g-roce", "rail-h100-8x400g", "moe-a100-100g"]


def idle(made):
    report = answer(made, made.topology.scenarios, draws=0, search_idle=True)
    return [warned.key for warned in report.warnings]


@pytest.mark.parametrize(("given", "keys"), long_except([
    ({"host": {"cores": 64}}, ["hosts[0].cores"]),
    ({"gpus": 2}, []),
    ({"gpus": 2, "hosts": 1, "nic": {"rate": "10Gbps"}}, ["hosts[0].pcie"]),
    ({"gpus": 2, "scenario": {"alltoall": "hierarchical"}}, ["scenarios[0].alltoall"]),
    ({"gpus": 2, "scenario": {"fusion": {"rule": "size", "cycle": "1ms"}}},
     ["scenarios[0].fusion.cycle"]),
    ({"gpus": 2, "scenario": {"steps": 5}}, ["scenarios[0].steps"]),
    ({"gpus": 2, "stacks": {"ideal": IDEAL, "other": {"base": "rdma", "threads": 2}}},
     ["stacks.other"]),
    ({"gpus": 2, "frameworks": {"free": FREE, "mine": {"base": "free", "overlap": 0.5}}},
     ["frameworks.mine"]),
    ({"gpus": 2, "seed": 7}, ["seed"]),
    ({"gpus": 2, "faults": [{"name": "f", "kind": "slow-gpu", "gpu": "h-0/0", "factor": 0.5,
                             "at": "1s"}]}, ["faults"]),
], ({"host": {"cores": 64}}, ["hosts[0].cores"]), ({"gpus": 2, "seed": 7}, ["seed"])))
def test_keys_that_change_no_row_are_named(tmp_path, given, keys):
    found = idle(cluster(tmp_path, **given))
    common = ("stacks.ideal.", "frameworks.free.", "scenarios[0].channels")
    assert [key for key in found if not key.startswith(common)] == keys


@pytest.mark.long
def test_figures_of_another_cluster_are_a_note_and_no_warning():
    """Where a value of the file is changed, no row is held against them, and that is said once."""
    made = Cluster(load(FOLDER / "taco-vgg16-v100-25g.yaml", ["hosts[0].nics[0].rate=10Gbps"]))
    report = answer(made, made.topology.scenarios, draws=0, search_idle=True)
    assert not report.warnings
    assert any("from another cluster or workload" in note for note in report.notes)


def test_a_capacity_that_does_not_bind_has_an_effect_all_the_same(tmp_path):
    """A tenth as much of it would: it is in the way of bytes."""
    made = cluster(tmp_path, gpus=2, rate_bps=1e9, vpc={"vnics": 1, "host_rate": "50Gbps"})
    assert "vpc.host_rate" not in idle(made)


def test_bounds_of_a_parameter_have_an_effect_on_the_interval(tmp_path):
    made = cluster(tmp_path, gpus=2, stacks={"ideal": IDEAL | {"flow_rate": {
        "value": "10Gbps", "low": "5Gbps", "high": "20Gbps", "confidence": "assumed",
        "source": "us"}}})
    assert not [key for key in idle(made) if "flow_rate" in key]


@pytest.mark.parametrize("name", long_except(QUICK, "explicit-triangle"))
def test_shipped_files_have_none(name):
    """A few of them: the others take long, and docs/start/topologies.md shows what they print."""
    assert name not in HUGE
    assert idle(Cluster(load(FOLDER / f"{name}.yaml"))) == []


def test_a_key_that_changes_memory_alone_has_an_effect(tmp_path):
    """Attention that keeps its scores, where the file says how fast all kernels are."""
    made = cluster(tmp_path, hosts=1, gpus=2, workload={
        "model": "gpt2", "batch": 1, "framework": "free", "flash": False})
    assert "workload.flash" not in idle(made)


@pytest.mark.parametrize(("limit", "what"), [("MOST_GPUS", "4 GPUs, more than 3"),
                                             ("MOST_EVENTS", "events, more than 3"),
                                             ("MOST_LEAVES", "values, more than 3")])
def test_a_search_that_would_take_long_is_left_out_and_said(tmp_path, monkeypatch, limit, what):
    monkeypatch.setattr(f"sim.answer.idle_keys.{limit}", 3)
    made = cluster(tmp_path, gpus=2, host={"cores": 64})
    report = answer(made, made.topology.scenarios, draws=0, search_idle=True)
    assert report.warnings == ()
    (note,) = report.notes
    assert note.startswith("No search for keys without effect: ")
    assert note.endswith(f"{what}.")


def test_a_run_of_some_scenarios_says_nothing_of_the_others(tmp_path):
    scenarios = [{"name": name, "stack": stack} for name, stack in (("a", "ideal"), ("b", "rdma"))]
    made = cluster(tmp_path, gpus=2, scenarios=scenarios)
    report = answer(made, made.topology.scenarios[1:], draws=0, search_idle=True)
    assert report.warnings == ()


def test_the_command_warns_with_the_place_in_the_file(tmp_path):
    path = write(tmp_path, topology(gpus=2, scenario={"steps": 3}))
    result = CliRunner().invoke(main, [str(path), "--draws", "0", "--quiet", "--json", "-"])
    assert result.exit_code == 0
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1)
                if "steps:" in text)
    wanted = f"warning: {path}:{line}:3: scenarios[0].steps: has no effect on any row"
    assert wanted in result.stderr.splitlines()
    assert {"key": "scenarios[0].steps", "line": line, "text": wanted.removeprefix("warning: ")
            } in json.loads(result.stdout)["warnings"]


def test_a_key_that_changes_a_row_of_few_gpus_needs_none_of_many(tmp_path, monkeypatch):
    ran = []

    def counted(made, scenario, gpus, settings, clock):
        ran.append(gpus)
        return make_run(made, scenario, gpus, settings, clock)

    monkeypatch.setattr("sim.answer.idle_keys.make_run", counted)
    monkeypatch.setattr("sim.answer.parallel._cores", lambda: 1)  # a worker would count for itself
    made = cluster(tmp_path, hosts=4, gpus=2, scenario={"gpus": [2, 8]})
    idle(made)
    assert ran
    assert ran.count(2) > ran.count(8)
