"""Files that ask for too much get the limit in a sentence, before anything large is built."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from sim.answer.scenario import run_scenario
from sim.run import main
from sim.schema import TopologyError, load
from sim.schema.size import (
    MOST_EXCHANGED,
    MOST_FLOWS,
    MOST_LISTED,
    MOST_NEXT_HOPS,
    MOST_RESOURCES,
)
from tests.support.cluster_files import cluster, topology, write

MOE = {"model": "moe", "batch": 8, "framework": "free"}
FLAP = {"name": "f", "kind": "link-flap", "link": "h-0/eth0-switch0", "at": "0s"}


def leaf_spine(leaves, spines, links=1):
    return {"template": "leaf-spine", "leaves": leaves, "spines": spines, "links": links}


def clos3(pods, leaves, aggs, cores):
    return {"template": "clos3", "pods": pods, "leaves": leaves, "aggs": aggs, "cores": cores}


def scenario(**keys):
    return {"name": "s", "stack": "ideal"} | keys


@pytest.mark.parametrize(("given", "key", "limit"), [
    ({"hosts": 65536, "gpus": 8}, "hosts", MOST_RESOURCES),
    ({"hosts": 20000, "host": {"nics": [{"name": "eth", "rate": "1Gbps", "count": 64,
                                         "ports": 8}]}}, "hosts", MOST_RESOURCES),
    ({"hosts": 65536, "vpc": {"vnics": 1_000_000, "vnic_rate": "1Gbps"}}, "vpc.vnics",
     MOST_RESOURCES),
    ({"fabric": leaf_spine(2, 1_000_000, 1_000_000)}, "fabric", MOST_RESOURCES),
    ({"fabric": leaf_spine(2, 1_000_000)}, "fabric", MOST_RESOURCES),
    ({"fabric": {"template": "rail", "spines": 10**6, "hosts_per_leaf": 1}}, "fabric",
     MOST_RESOURCES),
    ({"hosts": 65536, "fabric": clos3(256, 256, 1024, 2048)}, "fabric", MOST_RESOURCES),
    ({"hosts": 32768, "fabric": leaf_spine(32768, 4)}, "fabric", MOST_NEXT_HOPS),
    ({"hosts": 512, "gpus": 8, "scenario": {"channels": 64, "sockets": 64}},
     "scenarios[0].channels", MOST_FLOWS),
    ({"hosts": 64, "gpus": 8, "scenario": {"channels": 64, "sockets": 64, "allreduce": "2d"}},
     "scenarios[0].channels", MOST_FLOWS),
    ({"hosts": 1024, "gpus": 8, "workload": MOE}, "scenarios[0].gpus", MOST_FLOWS),
    ({"hosts": 1024, "gpus": 8, "workload": MOE, "scenario": {"alltoall": "hierarchical"}},
     "scenarios[0].gpus", MOST_FLOWS),
    ({"hosts": 1024, "gpus": 8, "jobs": [{"name": "j", "workload": MOE, "hosts": [
        f"h-{number}" for number in range(1024)]}]}, "scenarios[0].gpus", MOST_FLOWS),
    ({"hosts": 64, "gpus": 8, "workload": MOE, "scenario": {"steps": 6}}, "scenarios[0].alltoall",
     MOST_EXCHANGED),
    ({"hosts": 17, "gpus": 8, "workload": MOE, "scenario": {"alltoall": "once-per-host"}},
     "scenarios[0].alltoall", MOST_LISTED),
    ({"hosts": 8, "gpus": 8, "workload": MOE, "scenario": {"steps": 1000}},
     "scenarios[0].alltoall", MOST_EXCHANGED),
])
def test_too_large_a_simulation_is_refused_before_it_is_built(tmp_path, given, key, limit):
    with pytest.raises(TopologyError) as caught:
        load(write(tmp_path, topology(**given)))
    assert caught.value.key == key
    assert f"at most {limit:,}" in caught.value.allowed
    assert caught.value.line > 0


@pytest.mark.parametrize("given", [
    {"hosts": 16384, "gpus": 8},
    {"hosts": 65536},
    {"hosts": 128, "gpus": 8, "workload": MOE, "scenario": {"alltoall": "hierarchical"}},
    {"hosts": 128, "gpus": 8, "workload": MOE},
    {"hosts": 512, "gpus": 8, "workload": MOE, "scenario": {"parallel": {"expert": 64}}},
    {"hosts": 1024, "gpus": 8, "workload": MOE, "scenario": {"gpus": [8, 256]}},
    {"hosts": 16384, "fabric": clos3(16, 32, 16, 256)},
])
def test_real_clusters_are_not_too_large(tmp_path, given):
    load(write(tmp_path, topology(**given)))


def test_steps_that_are_alike_are_simulated_once(tmp_path):
    def answer(steps):
        built = cluster(tmp_path, hosts=2, gpus=2, faults=[
            {"name": "f", "kind": "link-degrade", "link": "h-0/eth0-switch0", "at": "0.3s",
             "for": "10ms", "factor": 0.01}], scenarios=[
                scenario(steps=steps, allreduce="ring"),
                scenario(name="t", steps=steps, allreduce="ring", faults=["f"])])
        return [run_scenario(built, each, 4)[0].step_s for each in built.topology.scenarios]

    healthy, struck = answer(10_000)
    assert healthy == pytest.approx(answer(1)[0], rel=1e-9)
    assert healthy < struck < healthy * 1.001
    assert (struck - healthy) * 10_000 == pytest.approx((answer(10)[1] - healthy) * 10, rel=1e-6)


@pytest.mark.parametrize("keys", [
    {"faults": ["f"]}, {"steps": 10_000, "jobs": ["one", "other"]}])
def test_an_endless_run_ends_at_the_limit(tmp_path, monkeypatch, keys):
    monkeypatch.setattr("sim.answer.clock.MOST_EVENTS", 5000)
    path = write(tmp_path, topology(
        hosts=4, faults=[FLAP | {"period": "10us"}], scenarios=[scenario(**keys)],
        jobs=[{"name": "one", "hosts": ["h-0", "h-1"]},
              {"name": "other", "hosts": ["h-2", "h-3"], "start": "10ms"}]))
    result = CliRunner().invoke(main, [str(path)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "scenarios[0]: 5,000 events by " in result.stderr
    assert "allowed: fewer steps or jobs" in result.stderr


def test_exchanges_that_are_too_long_are_refused_with_the_way_out(tmp_path, monkeypatch):
    """One job and one step are too much here, so fewer of these are no help."""
    monkeypatch.setattr("sim.answer.clock.MOST_EVENTS", 50)
    path = write(tmp_path, topology(hosts=2, gpus=4, workload={"model": "moe", "batch": 1},
                                    scenarios=[scenario(alltoall="once-per-host")]))
    result = CliRunner().invoke(main, [str(path)])
    assert result.exit_code == 2
    assert "50 events by " in result.stderr
    assert result.stderr.endswith("or alltoall: direct\n")


def test_a_fifo_that_nobody_writes_to_is_an_empty_file(tmp_path):
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)
    for command in (["sim.run", fifo], ["sim.calibrate", fifo],
                    ["sim.calibrate", "--stack", "harp", "--from", fifo]):
        done = subprocess.run([sys.executable, "-m", *map(str, command)], capture_output=True,
                              text=True, check=False, timeout=120)
        assert done.returncode == 2
        assert "empty" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_pipe_is_read_to_its_end(tmp_path):
    text = write(tmp_path, topology()).read_bytes()
    done = subprocess.run([sys.executable, "-m", "sim.run", "/dev/stdin"], input=text,
                          capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


# ---- text that would act on a terminal, and words where numbers are meant

@pytest.mark.parametrize("odd", ["\x1b[31mred", "a\0b", "a\rb", "a\nb", "\x9b1m", "a\u2028b",
                                 "\u202eevil", "a\u200bb"])
@pytest.mark.parametrize("place", ["name", "model", "source"])
def test_names_hold_no_control_characters(tmp_path, odd, place):
    given = topology()
    if place == "name":
        given["scenarios"][0]["name"] = odd
    elif place == "model":
        given["hosts"][0]["gpus"]["model"] = odd
    else:
        given["expect"] = [{"scenario": "s", "gpus": 2, "images_per_s": 1.0, "kind": "measured",
                            "within": "5%", "source": odd}]
    with pytest.raises(TopologyError) as caught:
        load(write(tmp_path, given))
    assert caught.value.says.startswith("the character '\\")
    assert str(caught.value).isprintable()


def test_an_error_about_a_file_with_an_odd_name_is_printable():
    result = CliRunner().invoke(main, ["no\x1b[31mfile\n.yaml"])
    assert result.exit_code == 2
    assert result.stderr.endswith("\n")
    assert result.stderr[:-1].isprintable()
    assert "no\\x1b[31mfile" in result.stderr


@pytest.mark.parametrize(("path", "value", "says"), [
    (("scenarios", 0, "light"), {"LIGHT_TOPK_ALLREDUCE": True}, "found true"),
    (("scenarios", 0, "light"), {"LIGHT_2D_ALLREDUCE": False}, "found false"),
    (("expect", 0, "images_per_s"), True, "found true"),
    (("expect", 0, "images_per_s"), "12", "found '12'"),
    (("expect", 0, "fits"), "", "found ''"),
    (("scenarios", 0, "channels"), True, "found true"),
    (("seed",), True, "found true"),
])
def test_a_word_is_no_number_and_nothing_is_no_name(tmp_path, path, value, says):
    given = topology(scenario={"allreduce": "light"}, expect=[
        {"scenario": "s", "gpus": 2, "images_per_s": 1.0, "kind": "measured", "within": "5%",
         "source": "nobody"}])
    place = given
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(TopologyError) as caught:
        load(write(tmp_path, given))
    assert caught.value.says == says
