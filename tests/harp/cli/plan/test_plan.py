"""``harp plan`` and ``harp env --plan``: from a job's file to what its ranks follow."""

from __future__ import annotations

import json

import pytest

from harp.routing.deployment import SETTINGS, Deployment
from harp.routing.path_plan import PlanError
from tests.harp.cli.plan.planned import ACROSS, FABRIC, run
from tests.support import ROOT
from tests.support.json_schemas import validate

SCHEMA = json.loads((ROOT / "docs" / "use" / "harp-plan-1.schema.json").read_text())
def planned(path):
    """The plan of a job, checked by the schema."""
    done = run("plan", path)
    assert done.exit_code == 0, done.stderr
    data = json.loads(done.stdout)
    validate(data, SCHEMA)
    assert Deployment.from_json(done.stdout).to_json() == done.stdout
    return data


def test_a_plan_of_tcp_holds_by_the_hash_of_tcp_and_asks_for_its_port(job, tmp_path):
    path, plan = job(flows=ACROSS, protocol="tcp"), tmp_path / "plan.json"
    data = planned(path)
    assert data["protocol"] == data["settings"]["HARP_PORT"] == "tcp"
    assert len(set(spines(data))) == len(ACROSS)
    plan.write_text(json.dumps(data))
    assert run("plan", path, "--check", plan).exit_code == 0
    assert "# Let TCP pass between the hosts" in run("env", "--plan", plan).stdout
    plan.write_text(json.dumps({**data, "protocol": "udp"}))
    assert "flows stray" in run("plan", path, "--check", plan).stderr


def spines(plan):
    return [flow["links"][1].partition("->")[2] for flow in plan["flows"]]


def test_flows_between_two_leaves_share_no_spine(job):
    plan = planned(job(flows=ACROSS))
    assert sorted(spines(plan)) == [f"spine{n}" for n in range(4)]
    assert (plan["max_load"], plan["bound"]) == (1.0, 1.0)
    assert plan["ranks"][3] == {"rank": 3, "host": "h-3", "listen": ["10.9.0.4:61000"],
                                "mbps": [100_000]}
    assert plan["flows"][3]["target"] == "10.9.0.8:61000"
    assert plan["settings"] == {"HARP_PATHS": "1", "HARP_ENGINES": "1"}


def test_ranks_of_a_host_have_ports_of_their_own(job):
    plan = planned(job(gpus=2, flows="alltoall", hosts=4, connections=2))
    listens = [rank["listen"] for rank in plan["ranks"]]
    assert listens[:2] == [["10.9.0.1:61000"], ["10.9.0.1:61001"]]
    sources = [{flow["source"] for flow in plan["flows"] if flow["from"] == rank}
               for rank in range(8)]
    assert not sources[0] & sources[1]
    pair = [flow["source"] for flow in plan["flows"] if (flow["from"], flow["to"]) == (0, 7)]
    assert len(set(pair)) == 2
    assert {flow["to"] for flow in plan["flows"] if flow["from"] == 0} == set(range(2, 8))


def test_engines_of_a_rank_never_want_one_port(job):
    plan = planned(job(flows="alltoall", hosts=4, connections=4, paths=2, engines=2))
    assert plan["ranks"][1]["listen"] == ["10.9.0.2:61000", "10.9.0.2:61001"]
    own = [flow["source"] for flow in plan["flows"] if flow["from"] == 0]
    assert len(own) == 3 * 4 * 2 == len(set(own))
    assert {flow["target"] for flow in plan["flows"] if flow["to"] == 1} == {
        "10.9.0.2:61000", "10.9.0.2:61001"}


def test_connections_take_the_nics_of_their_ranks_in_turn(job):
    fabric = {"template": "rail", "hosts_per_leaf": 2, "spines": 2}
    plan = planned(job(fabric=fabric, nic={"count": 2}, hosts=4, connections=2,
                       flows=[{"from": 0, "to": 2}]))
    assert [flow["source"].partition(":")[0] for flow in plan["flows"]] == ["10.9.0.1", "10.9.1.1"]
    assert [flow["target"].partition(":")[0] for flow in plan["flows"]] == ["10.9.0.3", "10.9.1.3"]
    assert plan["settings"]["NCCL_CROSS_NIC"] == "0"


def test_a_ring_passes_over_what_stays_in_a_host(job):
    plan = planned(job(gpus=2, hosts=4))
    between = [(flow["from"], flow["to"]) for flow in plan["flows"]]
    assert between == [(1, 2), (3, 4), (5, 6), (7, 0)]


TWO_TORS = {
    "devices": [{"name": name} for name in ("a", "b", "up")],
    "links": [*({"from": f"h-{host}/eth0", "to": "ab"[host % 2]} for host in range(4)),
              {"from": "a", "to": "up"}, {"from": "b", "to": "up"}]}


def test_hosts_in_order_of_their_places_leave_each_leaf_once(job, tmp_path):
    hosts = tmp_path / "hosts"
    crossings = {}
    for order in ("given", "near"):
        done = run("plan", job(hosts=4, gpus=2, fabric=TWO_TORS, order=order), "--hostfile", hosts)
        assert done.exit_code == 0, done.stderr
        crossings[order] = sum("a->up" in flow["links"]
                               for flow in json.loads(done.stdout)["flows"])
    assert crossings == {"given": 2, "near": 1}
    assert hosts.read_text() == "h-0 slots=2\nh-2 slots=2\nh-1 slots=2\nh-3 slots=2\n"
    ranks = json.loads(done.stdout)["ranks"]
    assert [rank["host"] for rank in ranks] == [host for host in ("h-0", "h-2", "h-1", "h-3")
                                                for _ in range(2)]
    assert ranks[2]["listen"] == ["10.9.0.3:61000"]


@pytest.mark.parametrize(("launcher", "line"), [
    ("mpich", "h-1:2"), ("torchrun", "h-1 --node-rank=1 --nproc-per-node=2")])
def test_the_host_file_is_in_the_launcher_s_format(job, tmp_path, launcher, line):
    hosts = tmp_path / "hosts"
    run("plan", job(hosts=4, gpus=2), "--hostfile", hosts, "--launcher", launcher)
    assert hosts.read_text().splitlines()[1] == line


def test_known_seeds_of_switches_count(job):
    plain, seeded = planned(job(flows=ACROSS)), planned(job(flows=ACROSS, seeds={"leaf0": 7}))
    assert plain["fabric"] != seeded["fabric"]
    assert [flow["source"] for flow in plain["flows"]] != [flow["source"]
                                                           for flow in seeded["flows"]]


def test_bonds_hash_a_plan_s_ports_to_the_links_that_it_has(job, tmp_path):
    fabric = {"template": "dual-tor", "pairs": 2, "spines": 2}
    nic, plan = {"ports": 2, "bond": "lacp-3+4"}, tmp_path / "plan.json"
    path = job(fabric=fabric, nic=nic, flows=ACROSS, paths=2)
    flows = planned(path)["flows"]
    assert {flow["links"][0] for flow in flows if flow["from"] == 0} == {
        "h-0/eth0->tor0a", "h-0/eth0->tor0b"}
    run("plan", path, "-o", plan)
    assert run("plan", path, "--check", plan).exit_code == 0
    done = run("plan", job(fabric=fabric, nic=nic | {"bond": "lacp-2+3"}, flows=ACROSS, paths=2),
               "--check", plan)
    assert "where the plan has" in done.stderr


def test_a_plan_is_checked_against_the_fabric_as_it_is(job, tmp_path):
    plan = tmp_path / "plan.json"
    path = job(flows=ACROSS)
    assert run("plan", path, "-o", plan).exit_code == 0
    assert run("plan", path, "--check", plan).stdout.startswith(f"{plan} is valid")
    for changed in ({"seeds": {"leaf0": 9}}, {"fabric": {**FABRIC, "spines": 3}}):
        done = run("plan", job(flows=ACROSS, **changed), "--check", plan)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "links, addresses or hashes have changed" in done.stderr


def test_a_plan_that_was_changed_strays(job, tmp_path):
    plan, path = tmp_path / "plan.json", job(flows=ACROSS)
    run("plan", path, "-o", plan)
    data = json.loads(plan.read_text())
    first, second = data["flows"][:2]
    first["source"], second["source"] = "10.9.0.1:65000", "10.9.0.2:65001"
    plan.write_text(json.dumps(data))
    done = run("plan", path, "--check", plan)
    assert done.exit_code == 1
    assert "where the plan has" in done.stderr


NO_PLANS = {"": "it is no JSON", "[]": "its format is None", '{"format": "harp-plan-9"}':
            "its format is 'harp-plan-9' and this HARP reads 'harp-plan-1'",
            '{"format": "harp-plan-1"}': "is missing"}


@pytest.mark.parametrize("text", NO_PLANS)
def test_a_file_that_is_no_plan_is_one_sentence(tmp_path, text):
    file = tmp_path / "plan.json"
    file.write_text(text)
    done = run("env", "--plan", file)
    assert (done.exit_code, done.stdout) == (2, "")
    assert NO_PLANS[text] in done.stderr


def test_a_plan_sets_no_other_names(job):
    data = planned(job(flows=ACROSS))
    assert set(data["settings"]) <= set(SETTINGS)
    data["settings"]["x; reboot"] = "1"
    with pytest.raises(PlanError, match="it sets 'x; reboot': allowed are HARP_PORT, HARP_PATHS"):
        Deployment.from_json(json.dumps(data))


def test_env_says_what_goes_with_a_plan(job, tmp_path):
    plan = tmp_path / "a plan.json"
    assert run("plan", job(flows=ACROSS, paths=2), "-o", plan).exit_code == 0
    done = run("env", "--plan", plan, HARP_PATHS="4")
    assert done.exit_code == 0
    assert f"export HARP_PLAN='{plan}'" in done.stdout
    assert "export HARP_PATHS=2" in done.stdout
    assert "# Let UDP pass between the hosts of the job: 61000 to listen, 6" in done.stdout
    assert "HARP_PATHS is 4 here, but the plan was made for 2, which is used" in done.stderr
    assert json.loads(run("env", "--plan", plan, "--json").stdout)["HARP_PLAN"] == str(plan)


def test_env_warns_where_a_plan_is_of_other_hosts(job, tmp_path):
    plan = tmp_path / "plan.json"
    assert run("plan", job(flows=ACROSS), "-o", plan).exit_code == 0
    done = run("env", "--plan", plan)
    assert done.exit_code == 0
    assert done.stderr.count(f"warning: {plan} lists no address of this host") == 1
    text = plan.read_text()
    first = json.loads(text)["ranks"][0]["listen"][0]
    plan.write_text(text.replace(first, "127.0.0.1:61000"))
    assert run("env", "--plan", plan).stderr == ""


def test_files_that_cannot_be_had(job, tmp_path):
    assert "cannot be read" in run("env", "--plan", tmp_path / "none").stderr
    done = run("plan", job(), "-o", tmp_path / "no" / "plan.json")
    assert done.exit_code == 2
    assert "cannot write" in done.stderr


@pytest.fixture
def running(job, tmp_path):
    """A job of flows across, and the plan that it follows."""
    path, plan = job(flows=ACROSS, paths=2), tmp_path / "plan.json"
    assert run("plan", path, "-o", plan).exit_code == 0
    return path, plan


@pytest.mark.parametrize("down", ["leaf0-spine1", "leaf0->spine1", "spine1"])
def test_a_revision_leaves_what_is_down_and_moves_no_other_flow(running, down):
    path, plan = running
    before = json.loads(plan.read_text())
    done = run("plan", path, "--replan", plan, "--without", down)
    assert (done.exit_code, done.stdout) == (0, ""), done.stderr
    after = json.loads(plan.read_text())
    validate(after, SCHEMA)
    assert "leaf0->spine1" in after["without"]
    assert "spine1" not in spines(after)
    assert [flow["target"] for flow in after["flows"]] == [flow["target"]
                                                           for flow in before["flows"]]
    stayed = [new["links"] == old["links"] for new, old in
              zip(after["flows"], before["flows"], strict=True) if "spine1" not in
              old["links"][1]]
    assert all(stayed)
    assert run("plan", path, "--check", plan).exit_code == 0


def test_a_revision_after_the_repair_spreads_flows_again(running):
    path, plan = running
    run("plan", path, "--replan", plan, "--without", "spine1")
    done = run("plan", path, "--replan", plan)
    assert done.exit_code == 0, done.stderr
    after = json.loads(plan.read_text())
    assert "without" not in after
    assert sorted(spines(after)) == [f"spine{n}" for n in range(4) for _ in range(2)]


def test_cables_between_the_same_two_are_distinguished(job, tmp_path):
    path, plan = job(fabric=FABRIC | {"spines": 2, "links": 2}, flows=ACROSS), tmp_path / "p.json"
    assert run("plan", path, "-o", plan).exit_code == 0
    before = json.loads(plan.read_text())
    climbs = [flow["links"][1] for flow in before["flows"]]
    assert sorted(climbs) == [f"leaf0->spine{n}#{cable}" for n in range(2) for cable in (1, 2)]
    done = run("plan", path, "--check", plan)
    assert done.exit_code == 0, done.stderr
    dead = climbs[0].replace("->", "-")
    assert run("plan", path, "--replan", plan, "--without", dead).exit_code == 0
    after = json.loads(plan.read_text())
    assert after["without"] == [climbs[0], f"{climbs[0].partition('->')[2][:6]}->leaf0"
                                           f"#{climbs[0][-1]}"]
    left = [flow["links"][1] for flow in after["flows"]]
    assert climbs[0] not in left
    assert left[1:] == climbs[1:]
    assert run("plan", path, "--check", plan).exit_code == 0
    assert run("plan", path, "--replan", plan, "--without", "leaf0-spine9#1").exit_code == 2


@pytest.mark.parametrize(("words", "sentence"), [
    (("--without", "spin1"), "the fabric has no such link or switch; did you mean 'spine1'?"),
    (("--without", "h-0/eth0-leaf0"), "no path leads from h-0/eth0"),
])
def test_an_impossible_replan_is_one_sentence(running, words, sentence):
    path, plan = running
    before = plan.read_text()
    done = run("plan", path, "--replan", plan, *words)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert plan.read_text() == before


def test_a_revision_of_another_job_s_plan_is_refused(running, job):
    _, plan = running
    done = run("plan", job(flows="ring"), "--replan", plan)
    assert done.exit_code == 1
    assert "it has other flows than the job as it is now" in done.stderr
