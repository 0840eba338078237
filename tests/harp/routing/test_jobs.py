"""Several jobs on one fabric: planned together, or around what others send."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing

import pytest
from click.testing import CliRunner

from harp.cli.main import harp
from harp.routing.background_load import Background
from harp.routing.deployment import Deployment
from harp.routing.jobs import Job, Ranks, Wanted, plan_job, plan_jobs
from lab.namespace import why_unusable
from lab.wiring import Wiring
from tests.support.cluster_files import cluster, topology, write, write_job
from tests.system.test_deployed_plan import Running, promised

FABRIC = {"template": "leaf-spine", "leaves": 2, "spines": 4, "hash": {"function": "linux"}}
ONE = {"hosts": ["h-0", "h-1", "h-4", "h-5"],
       "flows": [{"from": 0, "to": 2}, {"from": 1, "to": 3}]}
OTHER = {"hosts": ["h-2", "h-3", "h-6", "h-7"],
         "flows": [{"from": 0, "to": 2}, {"from": 1, "to": 3}]}
HALVES = ({"gpus": [0]}, {"gpus": [1]})


def run(*arguments):
    return CliRunner().invoke(harp, [str(word) for word in arguments],
                              env={"HARP_CONF_FILE": "/dev/null"})


@pytest.fixture
def jobs(tmp_path):
    """Write two jobs of one topology; give their paths."""
    def made(one=ONE, other=OTHER, *, hosts=8, gpus=1, fabric=FABRIC):
        data = topology(hosts=hosts, gpus=gpus, fabric=fabric)
        return tuple(write_job(tmp_path, data, **keys).rename(tmp_path / f"{name}.yaml")
                     for name, keys in (("one", one), ("other", other)))
    return made


def plans(folder, *words):
    """The plans that a command leaves in a folder."""
    done = run("plan", *words, "-o", folder)
    assert done.exit_code == 0, done.stderr
    return [json.loads((folder / f"{name}.json").read_text()) for name in ("one", "other")]


def climbs(plan):
    """Links from leaves to spines that flows take."""
    return sorted(flow["links"][1] for flow in plan["flows"])


def ports(plan, host):
    """UDP ports that a plan needs at an address."""
    needed = [address for rank in plan["ranks"] for address in rank["listen"]]
    needed += [flow["source"] for flow in plan["flows"]]
    return {int(port) for ip, port in (one.split(":") for one in needed) if ip == host}


def test_jobs_that_are_planned_together_share_no_link(jobs, tmp_path):
    one, other = jobs()
    together = plans(tmp_path / "plans", one, other)
    assert sorted(climbs(together[0]) + climbs(together[1])) == [f"leaf0->spine{n}"
                                                                 for n in range(4)]
    assert [plan["max_load"] for plan in together] == [1.0, 1.0]
    assert [rank["host"] for rank in together[1]["ranks"]] == ["h-2", "h-3", "h-6", "h-7"]
    assert {flow["from"] for flow in together[1]["flows"]} == {0, 1}
    done = run("plan", one, other, "--check", tmp_path / "plans")
    assert done.stdout.count("is valid") == 2


def test_a_job_goes_around_another_s_plan(jobs, tmp_path):
    one, other = jobs()
    theirs = tmp_path / "theirs.json"
    assert run("plan", one, "-o", theirs).exit_code == 0
    done = run("plan", other, "--around", theirs)
    assert done.exit_code == 0, done.stderr
    assert not {*climbs(json.loads(done.stdout))} & {*climbs(json.loads(theirs.read_text()))}


def test_a_job_goes_around_links_that_are_busy(jobs, tmp_path):
    _, other = jobs()
    busy = write(tmp_path, {"rates": {"leaf0->spine0": "90Gbps", "leaf0->spine3": "60Gbps",
                                      "leaf1->spine3": "0bps"}}, "busy.yaml")
    done = run("plan", other, "--around", busy)
    assert done.exit_code == 0, done.stderr
    assert climbs(json.loads(done.stdout)) == ["leaf0->spine1", "leaf0->spine2"]


def test_jobs_of_one_host_take_ports_of_their_own(jobs, tmp_path):
    one, other = jobs(*HALVES, hosts=2, gpus=2)
    for both in (plans(tmp_path / "plans", one, other),
                 _around(one, other, tmp_path)):
        assert len(both[0]["ranks"]) == 2
        for host in ("10.9.0.1", "10.9.0.2"):
            assert len(ports(both[0], host)) == 2
            assert not ports(both[0], host) & ports(both[1], host)


def test_jobs_of_one_host_are_bound_to_cores_of_their_own(jobs, tmp_path):
    one, other = jobs(*HALVES, hosts=2, gpus=2)
    done = run("plan", one, other, "-o", tmp_path / "plans", "--files", tmp_path / "files")
    assert done.exit_code == 0, done.stderr
    slots = [(tmp_path / "files" / name / "rankfile.openmpi").read_text().split("slot=")[1:]
             for name in ("one", "other")]
    assert slots == [["0-15\nrank 1=h-1 ", "0-15\n"], ["16-31\nrank 1=h-1 ", "16-31\n"]]
    assert not (tmp_path / "files" / "one" / "graph.xml").exists()


def _around(one, other, folder):
    theirs, ours = folder / "theirs.json", folder / "ours.json"
    assert run("plan", one, "-o", theirs).exit_code == 0
    assert run("plan", other, "--around", theirs, "-o", ours).exit_code == 0
    return [json.loads(path.read_text()) for path in (theirs, ours)]


def test_revisions_of_jobs_stay_apart_around_a_dead_spine(jobs, tmp_path):
    spine = FABRIC | {"spines": 5}
    one, other = jobs(fabric=spine)
    before = plans(tmp_path / "plans", one, other)
    dead = climbs(before[0])[0].partition("->")[2]
    done = run("plan", one, other, "--replan", tmp_path / "plans", "--without", dead)
    assert done.exit_code == 0, done.stderr
    after = [json.loads((tmp_path / "plans" / f"{name}.json").read_text())
             for name in ("one", "other")]
    used = climbs(after[0]) + climbs(after[1])
    assert len({*used}) == 4
    assert not any(dead in link for link in used)
    assert climbs(after[1]) == climbs(before[1])


def test_a_revision_of_one_job_goes_around_the_other(jobs, tmp_path):
    one, other = jobs(fabric=FABRIC | {"spines": 5})
    both = _around(one, other, tmp_path)
    dead = climbs(both[0])[0].partition("->")[2]
    done = run("plan", one, "--replan", tmp_path / "theirs.json", "--without", dead,
               "--around", tmp_path / "ours.json")
    assert done.exit_code == 0, done.stderr
    after = json.loads((tmp_path / "theirs.json").read_text())
    assert not {*climbs(after)} & {*climbs(both[1])}
    assert not any(dead in link for link in climbs(after))


@pytest.mark.parametrize(("keys", "sentence"), [
    ({"hosts": ["h-0", "h-9"]}, "'h-9' is not a known host of the topology"),
    ({"hosts": ["h-0", "h-0"]}, "h-0 is named twice"),
    ({"gpus": [0, 2]}, "there is no GPU 2 on each host"),
    ({"hosts": ["h-0", "h-1"], "flows": [{"from": 0, "to": 2}]}, "there is no rank 2"),
])
def test_a_mistake_in_a_job_s_hosts_is_one_sentence(jobs, keys, sentence):
    one, _ = jobs(one=keys)
    done = run("plan", one)
    assert (done.exit_code, done.stdout) == (2, "")
    assert sentence in done.stderr


def test_a_mistake_in_several_jobs_is_one_sentence(jobs, tmp_path):
    one, other = jobs()
    rates = write(tmp_path, {"rates": {"leaf0->spine9": "1Gbps"}}, "rates.yaml")
    foreign = write(tmp_path, topology(hosts=8, fabric=FABRIC | {"spines": 2}), "foreign.yaml")
    other.write_text(other.read_text().replace("top.yaml", foreign.name))
    for words, sentence in (
            ((one, one), "two jobs are called one"),
            ((one, other), "several jobs need a folder for their plans: give -o FOLDER"),
            ((one, other, "-o", tmp_path / "plans"), "use different fabrics"),
            ((one, "--around", rates), "has no link 'leaf0->spine9'; did you mean 'leaf0->spine"),
            ((one, "--around", foreign), "unknown key")):
        done = run("plan", *words)
        assert done.exit_code == 2
        assert sentence in done.stderr, done.stderr


def test_a_plan_of_another_fabric_is_no_background(jobs, tmp_path):
    one, other = jobs(fabric=FABRIC | {"spines": 5})
    theirs = tmp_path / "theirs.json"
    run("plan", one, "-o", theirs)
    text = theirs.read_text().replace("->spine", "->spone")
    theirs.write_text(text)
    done = run("plan", other, "--around", theirs)
    assert done.exit_code == 1
    assert "the plan was made for another fabric" in done.stderr


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_data_of_two_jobs_shares_no_link_of_kernel_routers(tmp_path):
    made = cluster(tmp_path, hosts=8, fabric=FABRIC | {"rate": "1Gbps"}, nic={"rate": "1Gbps"})
    names = made.topology.host_names

    def job(*hosts):
        ranks = Ranks(made.host[[*hosts]], made.endpoint[[*hosts]], made.own_nics[[*hosts]], names)
        return Job(ranks, Wanted([(0, 2), (1, 3)]))

    one, other = job(0, 1, 4, 5), job(2, 3, 6, 7)
    alone = plan_job(made.fabric, *one)
    around = plan_job(made.fabric, *other, around=Background.of_plans(made.fabric, [alone]))
    together = plan_jobs(made.fabric, [one, other])
    assert promised(plan_job(made.fabric, *other)) & promised(alone)
    with closing(Wiring(made.fabric, 1.0, 1500)) as wiring:
        for pair in ([alone, around], together):
            crossed = []
            for hosts, plan in zip(((0, 1, 4, 5), (2, 3, 6, 7)), pair, strict=True):
                with ExitStack() as stack:
                    running = Running(stack, wiring, Deployment.from_json(plan.to_json()),
                                      [wiring.hosts[host] for host in hosts])
                    crossed.append(running.crossed())
                assert crossed[-1] == promised(plan)
            assert not crossed[0] & crossed[1]
