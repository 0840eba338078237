"""Symptoms of legs: a fault on one way shows in its own symptom, on the legs of that way."""

import pytest

from harp.cli.diagnose import symptoms
from harp.cli.diagnose.legs import picture_of
from tests.support.diagnosis_cluster import all_to_all

FAULTS = {
    "gone": (symptoms.find_gone, {"open": False}, "carries nothing", "legs are dead"),
    "flapping": (symptoms.find_flapping, {"deaths": 5}, "comes and goes", "times, and came back"),
    "narrow": (symptoms.find_narrow, {"fragments": 2}, "drops long packets",
               "frames of more than 700 bytes of UDP payload do not pass on"),
    "lost": (lambda picture: symptoms.find_lost(picture, []), {"loss": 0.1}, "loses packets",
             "were lost on"),
    "slow": (lambda picture: symptoms.find_slow(picture, disturbed=False),
             {"rate": 100, "round_trip_ns": 900_000}, "is slower than others like it",
             "Mb/s with full windows"),
}


def bad_ways(found):
    return {(leg.source.ip, leg.target.ip) for leg in found.bad}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_port_is_seen_on_its_legs_alone(fault):
    find, change, name, evidence = FAULTS[fault]
    cluster = all_to_all(4)
    for way in cluster.touching(1, 0, "out"):
        for attribute, value in change.items():
            setattr(way, attribute, value)
    found = find(picture_of(cluster.reports()))
    assert found.name == name
    out = {("10.0.0.2", f"10.0.0.{host}") for host in (1, 3, 4)}
    assert bad_ways(found) == out
    assert found.well
    assert evidence in found.evidence(found.bad)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_healthy_job_has_no_bad_leg(fault):
    found = FAULTS[fault][0](picture_of(all_to_all(4).reports()))
    assert found.bad == []
    assert found.well


def test_a_receiver_that_others_wait_for_is_late_unless_it_waits_itself():
    cluster = all_to_all(3)
    cluster.starved[0, 1] = cluster.starved[2, 1] = 0.6
    reports = cluster.reports()
    found = symptoms.find_late(picture_of(reports), reports)
    assert {(leg.source.host, leg.target.host) for leg in found.bad} == {("h0", "h1"), ("h2", "h1")}
    assert "2 senders wait for its receive buffers 60% of the time" in found.evidence(found.bad)
    cluster.starved[1, 2] = 0.6
    reports = cluster.reports()
    assert symptoms.find_late(picture_of(reports), reports).bad == []


def test_few_packets_say_nothing():
    cluster = all_to_all(3)
    for way in cluster.ways.values():
        way.rate = 10
    found = symptoms.find_lost(picture_of(cluster.reports()), [])
    assert (found.bad, found.well) == ([], [])
