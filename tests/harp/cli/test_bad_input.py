"""Wrong input to commands: one sentence with the place, exit code 2, and no traceback."""

import json

import pytest

from tests.harp.cli.said import say
from tests.support.cluster_files import topology, write_job

PLAN = {"format": "harp-plan-1", "fabric": "0", "settings": {}, "max_load": 1, "bound": 1,
        "ecmp_load": 1, "unrealised": 0,
        "ranks": [{"rank": 0, "host": "a", "listen": ["10.0.0.1:61000"]},
                  {"rank": 1, "host": "b", "listen": ["10.0.0.2:61000"]}],
        "flows": [{"from": 0, "to": 1, "source": "10.0.0.1:61256", "target": "10.0.0.2:61000",
                   "links": []}]}


def planned(tmp_path, change):
    plan = json.loads(json.dumps(PLAN))
    change(plan)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    return say("env", "--plan", tmp_path / "plan.json")


def test_the_plan_itself_is_good(tmp_path):
    assert planned(tmp_path, lambda plan: None).exit_code == 0


@pytest.mark.parametrize(("change", "sentence"), [
    (lambda plan: plan["ranks"][0].update(listen=["10.0.0.1:99999"]), "ranks[0].listen[0] is"),
    (lambda plan: plan["ranks"][1].update(rank=0), "rank 0 is there 2 times"),
    (lambda plan: plan["ranks"][1].update(rank=4_000_000_000), "ranks[1].rank is 4000000000"),
    (lambda plan: plan["flows"][0].update({"to": 7}), "flows[0] is of rank 7, which is not there"),
    (lambda plan: plan.update(bound=float("nan")), "NaN is no number"),
    (lambda plan: plan.update(ranks={}), "ranks is {}: a list is possible"),
])
def test_a_wrong_plan_is_one_sentence(tmp_path, change, sentence):
    done = planned(tmp_path, change)
    assert (done.exit_code, sentence in done.stderr) == (2, True), done.stderr
    assert done.stdout == ""


def test_a_plan_that_is_nested_for_ever_is_one_sentence(tmp_path):
    (tmp_path / "plan.json").write_text('{"ranks":' * 200_000)
    done = say("env", "--plan", tmp_path / "plan.json")
    assert done.exit_code == 2
    assert "nested too deeply" in done.stderr


@pytest.mark.parametrize("export", ["127.0.0.1:1x", "[::1]:", "0.0.0.0:-1"])
def test_an_address_without_a_port_is_no_file(tmp_path, monkeypatch, export):
    monkeypatch.chdir(tmp_path)
    done = say("top", "--once", "--export", export)
    assert done.exit_code == 2
    assert "is no port: 0 to 65535 are possible" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("address", ["239.1.2.3", "0.0.0.0", "255.255.255.255"])
def test_an_address_of_no_host_is_refused(tmp_path, address):
    job = write_job(tmp_path, topology(hosts=2), addresses={"h-0/eth0": address,
                                                            "h-1/eth0": "10.0.0.2"})
    done = say("plan", job)
    assert (done.exit_code, f"{address} is the address of no host" in done.stderr) == (2, True), \
        done.stderr
