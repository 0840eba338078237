"""``harp diagnose``: who is named for what, in made-up jobs of any size, load and chance."""

import re
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.cli.diagnose.snapshot import SnapshotError, from_json, to_json
from harp.cli.diagnose.suspects import find_suspects
from tests.support.diagnosis_cluster import Cluster, all_to_all
from tests.support.levels import draws

HOSTS = st.integers(3, 7)
SEEDS = st.integers(0, 1000)


def names(suspects):
    return [(each.kind, each.host or each.name, each.way, each.symptom) for each in suspects]


@st.composite
def struck(draw):
    """A job, and a port of one of its hosts."""
    hosts = draw(HOSTS)
    return all_to_all(hosts, draw(SEEDS)), draw(st.integers(0, hosts - 1)), draw(st.integers(0, 1))


@st.composite
def healthy(draw):
    """Any load of any hosts, with as much loss as is normal."""
    hosts = draw(st.integers(2, 6))
    every = list(permutations(range(hosts), 2))
    cluster = Cluster(hosts, draw(st.lists(st.sampled_from(every), min_size=1, max_size=20,
                                           unique=True)), draw(SEEDS))
    for a, b in every:
        rate = draw(st.sampled_from([0, 3, 40, 400, 1500]))
        fullness = draw(st.floats(0, 1))
        for port in (0, 1):
            way = cluster.ways[a, b, port]
            way.rate, way.fullness = rate, fullness
            way.loss = draw(st.sampled_from([0, 1e-4]))
            way.round_trip_ns = draw(st.integers(20_000, 20_000_000))
    share = draw(st.floats(0, 0.9))
    cluster.starved = dict.fromkeys(every, share) if draw(st.booleans()) else {}
    for ends in cluster.starved:  # all wait for all alike, within a twentieth of the time
        cluster.starved[ends] += draw(st.floats(0, 0.05))
    return cluster


@settings(deadline=None, max_examples=20)
@given(healthy())
def test_nothing_is_said_of_a_healthy_job(cluster):
    if len(cluster.starved) > len(cluster.pairs):  # not everybody sends: only who waits is late
        cluster.starved = {}
    assert find_suspects(cluster.reports()) == []


@settings(deadline=None, max_examples=draws(20))
@given(struck(), st.sampled_from(["in", "out", "both"]))
def test_a_port_that_carries_nothing_is_named_with_its_direction(job, way):
    cluster, host, port = job
    for each in cluster.touching(host, port, way):
        each.open = False
    [suspect] = find_suspects(cluster.reports())
    assert (suspect.kind, suspect.host, suspect.symptom) == ("port", f"h{host}",
                                                             "carries nothing")
    assert f"eth{port}" in suspect.name
    assert suspect.way == way
    assert suspect.confidence > 0.9


@settings(deadline=None, max_examples=20)
@given(struck(), st.sampled_from(["in", "out"]), st.sampled_from([0.02, 0.05, 0.2]))
def test_a_port_that_loses_packets_is_named(job, way, share):
    cluster, host, port = job
    for each in cluster.touching(host, port, way):
        each.loss = share
    [suspect] = find_suspects(cluster.reports())
    assert (suspect.kind, suspect.host, suspect.way, suspect.symptom) == (
        "port", f"h{host}", way, "loses packets")


@settings(deadline=None, max_examples=20)
@given(struck())
def test_a_port_that_corrupts_packets_is_named(job):
    cluster, host, port = job
    for each in cluster.touching(host, port, "out"):
        each.bad = 0.02
    [suspect] = find_suspects(cluster.reports())
    assert names([suspect]) == [("port", f"h{host}", "out", "corrupts packets")]
    assert "wrong checksum" in suspect.evidence[0]


def test_datagrams_dropped_for_their_checksum_count_as_corrupted():
    cluster = all_to_all(4)
    for each in cluster.touching(2, 0, "in"):
        each.loss = 0.02
    cluster.checksums[2] = 100
    assert names(find_suspects(cluster.reports())) == [("port", "h2", "in", "corrupts packets")]


@settings(deadline=None, max_examples=20)
@given(struck())
def test_a_port_that_drops_long_packets_is_named(job):
    cluster, host, port = job
    for each in cluster.touching(host, port, "out"):
        each.fragments = 2
    [suspect] = find_suspects(cluster.reports())
    assert names([suspect]) == [("port", f"h{host}", "out", "drops long packets")]
    assert "700 bytes" in suspect.evidence[0]


@settings(deadline=None, max_examples=20)
@given(struck(), st.sampled_from(["in", "out"]))
def test_a_slow_port_is_named(job, way):
    cluster, host, port = job
    for each in cluster.touching(host, port, way):
        each.rate, each.round_trip_ns = 160, 3_000_000
    [suspect] = find_suspects(cluster.reports())
    assert names([suspect]) == [("port", f"h{host}", way, "is slower than others like it")]


@settings(deadline=None, max_examples=draws(20))
@given(struck())
def test_a_port_that_flaps_is_named(job):
    cluster, host, port = job
    for each in cluster.touching(host, port):
        each.deaths = 4
    [suspect] = find_suspects(cluster.reports())
    assert names([suspect]) == [("port", f"h{host}", "both", "comes and goes")]


@settings(deadline=None, max_examples=draws(20))
@given(HOSTS, SEEDS, st.integers(0, 1))
def test_a_lost_tor_is_a_network(hosts, seed, port):
    cluster = all_to_all(hosts, seed)
    for host in range(hosts):
        for each in cluster.touching(host, port):
            each.open = False
    assert names(find_suspects(cluster.reports())) == [
        ("network", f"network 10.0.{port}.0/24", "both", "carries nothing")]


@settings(deadline=None, max_examples=draws(20))
@given(struck())
def test_one_way_between_two_ports_is_no_port(job):
    cluster, host, port = job
    other = (host + 1) % cluster.hosts
    cluster.ways[host, other, port].open = False
    best = find_suspects(cluster.reports())[0]
    assert (best.kind, best.way) == ("path", "out")
    assert f"of h{host} to" in best.name


@settings(deadline=None, max_examples=20)
@given(struck(), st.floats(0.3, 0.9))
def test_a_slow_rank_is_named_though_others_wait_for_those_who_wait(job, share):
    cluster, late, _ = job
    for a, b in cluster.starved or permutations(range(cluster.hosts), 2):
        if a != late:  # back pressure: who waits for the late one lets others wait, too
            cluster.starved[a, b] = share if b == late else 0.8 * share
    assert names(find_suspects(cluster.reports())) == [("host", f"h{late}", "in",
                                                   "is late to receive")]


@settings(deadline=None, max_examples=draws(20))
@given(struck())
def test_a_peer_that_cannot_give_credit_is_not_late(job):
    """A host's frames are lost, its credit too, so its peers wait for credit."""
    cluster, host, _ = job
    for each in cluster.touching(host, way="out"):
        each.open = False
    cluster.starved = {(a, b): 0.99 * (b == host) for a, b in permutations(range(cluster.hosts), 2)}
    assert names(find_suspects(cluster.reports())) == [
        ("host", f"h{host}", "out", "carries nothing")]


def test_two_faults_are_two_suspects():
    cluster = all_to_all(6)
    for each in cluster.touching(0, 0):
        each.open = False
    for each in cluster.touching(3, 1, "in"):
        each.loss = 0.05
    assert [(each.host, each.symptom) for each in find_suspects(cluster.reports())] == [
        ("h0", "carries nothing"), ("h3", "loses packets")]


def test_two_hosts_leave_open_which_end_it_is():
    """Each suspect is as likely as the others, and all of them are named."""
    cluster = Cluster(2, [(0, 1)], 1)
    cluster.ways[0, 1, 1].open = False
    suspects = find_suspects(cluster.reports())
    assert {each.kind for each in suspects} == {"port", "path", "network"}
    assert {each.host for each in suspects} == {"h0", "h1", ""}
    assert sum(each.confidence for each in suspects) <= 1


def test_a_host_that_is_gone_is_named_by_its_peers():
    cluster = all_to_all(4)
    for each in cluster.touching(2):
        each.open = False
    suspects = find_suspects([report for report in cluster.reports() if report.host != "h2"])
    [suspect] = suspects
    assert (suspect.kind, suspect.symptom) == ("host", "is not heard")
    assert "10.0.0.3" in suspect.name


def test_a_host_without_a_report_that_is_heard_is_no_suspect():
    reports = all_to_all(4).reports()
    assert find_suspects(reports[1:]) == []


def test_a_process_that_died_is_named_with_its_last_words():
    cluster = all_to_all(3)
    cluster.dead_processes.add(1)
    suspect = find_suspects(cluster.reports())[0]
    assert (suspect.kind, suspect.host, suspect.confidence) == ("process", "h1", 1.0)
    assert "path died" in suspect.evidence[1]


def test_deaths_in_another_job_are_not_named():
    """Its engine has nobody here for a peer, and died before the first look."""
    other = all_to_all(3)
    other.dead_processes.add(1)
    [died] = [report for report in other.reports() if report.host == "h1"]
    [engine] = died.moments[0].engines
    old = engine.model_copy(update={"file": "harp-0-9-9", "connections": [
        row.model_copy(update={"id": row.id + 10**6}) for row in engine.connections]})
    reports = all_to_all(3).reports()
    with_old = [report.model_copy(update={"moments": [
        moment.model_copy(update={"engines": [*moment.engines, old]})
        for moment in report.moments]}) for report in reports]
    assert find_suspects(with_old) == []


def test_where_no_process_lives_the_last_death_is_named():
    cluster = all_to_all(3)
    cluster.dead_processes |= {0, 1, 2}
    assert {each.host for each in find_suspects(cluster.reports())} >= {"h0", "h1", "h2"}


NUMBER = re.compile(r"(?<=:)\d+(?=[,}])")


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(-3, 2**64))
def test_any_file_is_judged_or_refused(at, value):
    """Each number of a report, for another one."""
    reports = all_to_all(2).reports()
    text = to_json(reports[0])
    places = list(NUMBER.finditer(text))
    place = places[at % len(places)]
    try:
        changed = from_json(text[:place.start()] + str(value) + text[place.end():])
    except SnapshotError:
        return
    find_suspects([changed, reports[1]])


def test_a_router_of_the_map_is_named():
    """Ways cross one of two routers, and those by one of them lose packets."""
    cluster = all_to_all(6)
    routers = {}
    for (a, b, port), way in cluster.ways.items():
        router = "r1" if (a * 7 + b * 3 + port) % 2 else "r2"
        routers[f"10.0.{port}.{a + 1}:7000", f"10.0.{port}.{b + 1}:7000"] = (router,)
        way.loss = 0.03 if router == "r1" else 0
    assert names(find_suspects(cluster.reports(), routers)) == [
        ("router", "router r1", "both", "loses packets")]


@pytest.mark.parametrize("hosts", [3, 6])
def test_a_suspect_is_surer_the_more_legs_say_so(hosts):
    def sure_of(most):
        cluster = all_to_all(hosts)
        for each in cluster.touching(0, 0, "out")[:most]:
            each.open = False
        return find_suspects(cluster.reports())[0].confidence
    assert sure_of(1) < sure_of(hosts - 1)
