"""Faults at given times: exact stalls, detours and returns, one clear error where none is left.

Two hosts whose ports carry 1 MB/s send each other 10 MB, which takes 10 s when all is well.
"""

from __future__ import annotations

import numpy as np
import pytest
import simpy

from harp.collectives.registry import make_plan
from sim.answer.scenario import run_scenario
from sim.cluster.cluster import Cluster
from sim.network.fidelity import make_network
from sim.network.interface import CutOffError, Site
from sim.network.transport import Style
from sim.records.timeline_track import Timeline
from sim.schema import TopologyError, load
from sim.schema.input_errors import Problem
from sim.schema.parameters import load_stack
from sim.step.compute import Slowness
from sim.step.faults import Struck, check_links, find_links, strike
from tests.support.cluster_files import cluster, topology, write

LEAF_SPINE = {"template": "leaf-spine", "leaves": 2, "spines": 2, "rate": "8Mbps"}
SMALL_FRAMES = {"mtu": "256B"}
"""A switch at 8 Mb/s holds one of these for a quarter of a millisecond."""
DUAL = {"ports": 2, "bond": "dynamic", "rate": "4Mbps"}


def sending(folder, faults, *, style=None, **given):
    """Seconds that the transfer takes under ``faults``, what was noted, and the transport."""
    fabric = given.pop("fabric", {"template": "single-switch", "latency": "0s"})
    made = cluster(folder, rate_bps=8e6, faults=faults, fabric=fabric | SMALL_FRAMES, **given)
    env = simpy.Environment()
    stack = load_stack("ideal", made.topology.stacks)
    network = make_network("flow", env, Site(made, stack, style or Style()))
    comm = network.communicator()
    notes: list[str] = []
    struck = Struck(env, network, made, [Slowness()], {}, notes)
    for fault in made.topology.faults:
        env.process(strike(fault, struck))
    plan = make_plan("reduce-scatter", ranks=2, nbytes=20_000_000)
    run = comm.run(plan, [np.arange(2)], lambda _: 0.0, Timeline(env, lambda _: None, "x"))
    env.run(env.process(run))
    return env.now, notes, network.transport


def fault(kind, link="h-0/eth0-switch0", **more):
    return {"name": "f", "kind": kind, "link": link, "at": "2s"} | more


def down(**more):
    return fault("link-down", **{"detection": "0.5s", "recovery": "0.25s"} | more)


def test_without_a_fault(tmp_path):
    assert sending(tmp_path, [])[0] == pytest.approx(10, rel=1e-4)


def test_a_degraded_link_slows_while_it_lasts(tmp_path):
    """From 2 s for 4 s at a quarter: 3 s of work lost."""
    seconds, notes, _ = sending(tmp_path, [fault("link-degrade", factor=0.25, **{"for": "4s"})])
    assert seconds == pytest.approx(13, rel=1e-4)
    assert notes == ["2000.0 ms: f: h-0/eth0-switch0 at 25% of its rate",
                     "6000.0 ms: f: h-0/eth0-switch0 at its full rate again"]


def test_a_link_that_returns_before_anyone_notices_costs_its_absence(tmp_path):
    seconds, notes, _ = sending(tmp_path, [down(**{"for": "0.7s"})])
    assert seconds == pytest.approx(10.7, rel=1e-4)
    assert notes[-1].endswith("is up again before anyone noticed")


def test_one_direction_only(tmp_path):
    """Nobody sends from h-1 to h-0 but the ring does: both hosts stall all the same."""
    seconds, _, _ = sending(tmp_path, [down(link="switch0->h-1/eth0", **{"for": "0.7s"})])
    assert seconds == pytest.approx(10.7, rel=1e-4)


def test_a_host_without_another_way_waits_for_its_link(tmp_path):
    seconds, notes, _ = sending(tmp_path, [down(**{"for": "3s"})])
    assert seconds == pytest.approx(13, rel=1e-4)
    assert notes[1].startswith("2750.0 ms: f: no path leads from h-")
    assert notes[2] == "5000.0 ms: f: h-0/eth0-switch0 is up and used again"


def used_spines(transport):
    paths = transport.paths([0], [1])
    names = {transport.cluster.resource_name(int(resource)) for resource in paths.resource}
    return {name for name in names if "->spine" in name}


def test_traffic_goes_around_after_detection_and_recovery(tmp_path):
    """The stall is exactly 0.75 s, whether the link comes back (and is used again) or not."""
    given = {"fabric": LEAF_SPINE}
    _, _, before = sending(tmp_path, [], **given)
    (used,) = used_spines(before)
    cut = down(link=used.replace("->", "-"))
    seconds, notes, after = sending(tmp_path, [cut], **given)
    assert seconds == pytest.approx(10.75, rel=1e-4)
    assert notes[1] == f"2750.0 ms: f: traffic goes around {cut['link']}"
    assert used_spines(after) != {used}
    seconds, _, after = sending(tmp_path, [cut | {"for": "5s"}], **given)
    assert seconds == pytest.approx(10.75, rel=1e-4)
    assert used_spines(after) == {used}


@pytest.mark.parametrize("routing", ["ecmp", "spray", "plan"])
def test_every_routing_goes_around(tmp_path, routing):
    cut = down(link="leaf0-spine0")
    seconds, _, after = sending(tmp_path, [cut], fabric=LEAF_SPINE, style=Style(routing))
    assert seconds <= 10.75 * (1 + 1e-4)
    assert used_spines(after) == {"leaf0->spine1"}


def test_a_flap_shorter_than_the_reaction_stalls_each_time(tmp_path):
    """Down 0.5 s, up 0.5 s, for 4 s from 2 s: half of 4 s lost."""
    flap = fault("link-flap", period="1s", detection="0.5s", recovery="0.25s", **{"for": "4s"})
    assert sending(tmp_path, [flap])[0] == pytest.approx(12, rel=1e-4)


def test_a_flap_for_ever_halves_the_rate(tmp_path):
    """2.1 s at full rate, then the second half of every second: 15 times, and 0.4 s of the last."""
    flap = fault("link-flap", period="1s", at="2.1s", detection="0.5s", recovery="0.25s")
    assert sending(tmp_path, [flap])[0] == pytest.approx(18, rel=1e-4)


def test_a_flap_longer_than_the_reaction_is_routed_around(tmp_path):
    """Each time only the reaction of 0.75 s is lost: at 2, 6 and 10 s."""
    used = next(iter(used_spines(sending(tmp_path, [], fabric=LEAF_SPINE)[2])))
    flap = fault("link-flap", used.replace("->", "-"), period="4s", detection="0.5s",
                 recovery="0.25s")
    seconds, notes, _ = sending(tmp_path, [flap], fabric=LEAF_SPINE)
    assert seconds == pytest.approx(12.25, rel=1e-4)
    assert sum("goes around" in note for note in notes) == 2
    assert notes[-1] == "10000.0 ms: f: and so on, every 4000 ms"


def test_the_worst_of_two_faults_on_a_link_holds(tmp_path):
    """Down from 2 to 4 s inside a degradation to a half from 1 to 6 s: 1 + 2 + 1 s lost."""
    faults = [fault("link-degrade", factor=0.5, at="1s", **{"for": "5s"}),
              down(detection="10s", **{"for": "2s"}) | {"name": "g"}]
    assert sending(tmp_path, faults)[0] == pytest.approx(10 + 0.5 + 2 + 1, rel=1e-4)


def test_a_dynamic_bond_follows_what_its_ports_deliver(tmp_path):
    """Two ports of half the rate; one at a fifth from 2 s on leaves 0.6 of the whole."""
    seconds, _, _ = sending(
        tmp_path, [fault("link-degrade", "h-0/eth0.1-switch0", factor=0.2)], nic=DUAL)
    assert seconds == pytest.approx(2 + 8 / 0.6, rel=1e-3)


def test_a_dynamic_bond_lives_on_one_port(tmp_path):
    seconds, _, _ = sending(tmp_path, [down(link="h-0/eth0.1-switch0")], nic=DUAL)
    assert seconds == pytest.approx(2 + 0.75 + 8 / 0.5, rel=1e-3)


def test_a_dual_tor_bond_survives_a_tor_link(tmp_path):
    seconds, _, _ = sending(
        tmp_path, [down(link="h-1/eth0-tor0b")], nic=DUAL,
        fabric={"template": "dual-tor", "pairs": 1, "spines": 1, "rate": "80Mbps"})
    assert seconds == pytest.approx(2 + 0.75 + 8 / 0.5, rel=1e-3)


def test_a_host_cut_off_for_good_is_an_error_even_while_others_flap(tmp_path):
    with pytest.raises(CutOffError, match="no path leads from h-"):
        sending(tmp_path, [down()])
    flap = fault("link-flap", "h-1/eth0-switch0", period="1s") | {"name": "g"}
    with pytest.raises(CutOffError):
        sending(tmp_path, [down(), flap])


def test_flaps_that_never_let_anything_through_end_in_an_error(tmp_path, monkeypatch):
    """Two links that both must be up, and never are at once."""
    monkeypatch.setattr("sim.step.faults.MOST_IDLE_FLAPS", 50)
    flap = fault("link-flap", period="10ms", at="0s")
    other = fault("link-flap", "h-1/eth0-switch0", period="10ms", at="5ms") | {"name": "g"}
    with pytest.raises(CutOffError, match="nothing got through"):
        sending(tmp_path, [flap, other])


# ---- through a scenario


def scenario(folder, faults, *, hosts=2, names=("f",), **top):
    data = topology(hosts=hosts, faults=faults, scenario={
        "faults": list(names), "fusion": {"threshold": "0B", "cycle": "0s"}}, **top)
    made = Cluster(load(write(folder, data)))
    return run_scenario(made, made.topology.scenarios[0], hosts)


def test_a_slow_gpu_sets_the_jobs_pace(tmp_path):
    slow = {"name": "f", "kind": "slow-gpu", "gpu": "h-1/0", "at": "0s", "factor": 0.5}
    (well,) = scenario(tmp_path, [slow], names=())
    (ill,) = scenario(tmp_path, [slow])
    assert ill.breakdown.compute_s == pytest.approx(2 * well.breakdown.compute_s)
    assert ill.notes == ("0.0 ms: f: h-1/0 at 50% of its speed",)


def test_a_fast_gpu_may_lose_what_it_has_to_spare(tmp_path):
    slow = {"name": "f", "kind": "slow-gpu", "gpu": "fast-0/00", "at": "0s", "factor": 0.25}
    group = topology()["hosts"][0]
    hosts = [group | {"count": 1},
             group | {"count": 1, "name": "fast",
                      "gpus": {"count": 1, "model": "x", "effective": "300TFLOPS"}}]
    data = topology(hosts=hosts, faults=[slow], scenario={"faults": ["f"]})
    made = Cluster(load(write(tmp_path, data)))
    (result,) = run_scenario(made, made.topology.scenarios[0], 2)
    alone = 128 * 3 * 15.47e9 * 2 / 100e12
    assert result.breakdown.compute_s == pytest.approx(alone / 0.75, rel=0.02)


def test_an_idle_gpu_may_be_slow(tmp_path):
    slow = {"name": "f", "kind": "slow-gpu", "gpu": "h-1/0", "at": "0s", "factor": 0.5}
    data = topology(faults=[slow], scenario={"faults": ["f"]})
    made = Cluster(load(write(tmp_path, data)))
    (result,) = run_scenario(made, made.topology.scenarios[0], 1)
    assert result.notes == ()


def test_a_fault_during_the_forward_pass_is_met_by_the_first_transfer(tmp_path):
    """The link is down when the first bucket is ready and returns only at 1 s."""
    (well,) = scenario(tmp_path, [down()], names=())
    late = down(at="10ms", detection="1ms", recovery="1ms", **{"for": "1s"})
    (ill,) = scenario(tmp_path, [late])
    assert well.step_s < 1.0 < ill.step_s
    assert ill.breakdown.step_s == pytest.approx(ill.step_s)


@pytest.mark.parametrize("at", ["10ms", "80ms"])
def test_a_host_cut_off_for_good_ends_in_one_sentence(tmp_path, at):
    """Before the first transfer and in the middle of it, alone or beside another job."""
    with pytest.raises(TopologyError) as ended:
        scenario(tmp_path, [down(at=at)])
    assert "scenarios[0].faults: training never ends: no path leads from h-" in str(ended.value)
    jobs = [{"name": "a", "hosts": ["h-0", "h-1"]}, {"name": "b", "hosts": ["h-2", "h-3"]}]
    data = topology(hosts=4, jobs=jobs, faults=[down(at=at)], scenario={"faults": ["f"]})
    made = Cluster(load(write(tmp_path, data)))
    with pytest.raises(TopologyError, match="never ends"):
        run_scenario(made, made.topology.scenarios[0], 4)


def test_a_fault_after_the_last_step_changes_nothing(tmp_path):
    (well,) = scenario(tmp_path, [down(at="100s")], names=())
    (ill,) = scenario(tmp_path, [down(at="100s")])
    assert ill.step_s == well.step_s


# ---- names


def test_links_by_name(tmp_path):
    fabric = cluster(tmp_path, nic={"ports": 2, "bond": "lacp-3+4"},
                     fabric=LEAF_SPINE | {"links": 3}).fabric

    def names(text):
        return sorted(map(fabric.link_name, find_links(fabric, text).tolist()))

    assert names("leaf0->spine1") == ["leaf0->spine1"] * 3
    assert names("spine1-leaf0") == ["leaf0->spine1"] * 3 + ["spine1->leaf0"] * 3
    assert len(names("h-0/eth0-leaf0")) == 4
    (port,) = find_links(fabric, "h-0/eth0.1->leaf0")
    assert port == fabric.endpoint_ports[0, 1]
    assert find_links(fabric, "leaf0->h-0/eth0.1").tolist() == [port ^ 1]


@pytest.mark.parametrize(("link", "says"), [
    ("leaf0-spine9", "did you mean 'leaf0-spine1'"),
    ("laef0-spine0", "did you mean 'leaf0-spine0'"),
    ("h-0/eth0-leaf1", "allowed: h-0/eth0 joined with leaf0"),
    ("h-0/eth0.3-leaf0", "does not join"),
    ("leaf0-leaf1", "no cable joins leaf0 and leaf1"), ("nonsense", "does not join two nodes")])
def test_unknown_links_are_refused_before_anything_runs(tmp_path, link, says):
    made = cluster(tmp_path, hosts=4, fabric=LEAF_SPINE, faults=[down(link=link)])
    with pytest.raises(Problem):
        find_links(made.fabric, link)
    with pytest.raises(TopologyError) as refused:
        check_links(made)
    assert "t.yaml:" in str(refused.value)
    assert "faults[0].link" in str(refused.value)
    assert says in str(refused.value)


def test_both_ports_of_a_bond_may_fail_at_once(tmp_path):
    """One second of the transfer is lost to both ports, and nobody noticed."""
    both = [down(link="h-0/eth0.0-switch0", **{"for": "1s"}, detection="2s") | {"name": "a"},
            down(link="h-0/eth0.1-switch0", **{"for": "1s"}, detection="2s") | {"name": "b"},
            fault("link-degrade", "h-1/eth0-switch0", factor=0.5, at="2.5s", **{"for": "2.5s"})]
    assert sending(tmp_path, both, nic=DUAL)[0] == pytest.approx(10 + 1 + 1, rel=1e-3)
