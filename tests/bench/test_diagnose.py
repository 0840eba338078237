"""Faults on the real stack in namespaces, and drawn ones between packets."""

from types import SimpleNamespace

import pytest

from bench.diagnose import drawn, named_faults
from bench.diagnose.drawn_lab import LabNetwork
from bench.diagnose.lab_job import Lab
from bench.diagnose.packet_job import PacketJob, PacketLab
from bench.diagnose.strikes import Load
from lab.namespace import why_unusable
from tests.support.levels import long, long_except

root_only = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


@long
@root_only
@pytest.mark.parametrize("name", ["link down", "MTU 1280, untold", "NIC port lost"])
def test_a_fault_is_named(name):
    """On a busy machine only after a while: connections feel a fault when they send over it."""
    [fault] = [each for each in named_faults.FAULTS if each.name == name]
    row = named_faults.run_fault(fault, looks=10)
    assert row["ok"], named_faults.line(row)


@long
@root_only
def test_a_healthy_job_is_left_alone():
    lab = Lab()
    try:
        row = named_faults.run_healthy(lab, "trickle")
    finally:
        lab.close()
    assert row["ok"], named_faults.line(row)


def test_there_are_ten_faults_and_ten_jobs_at_least():
    assert len(named_faults.FAULTS) >= 10
    assert len(named_faults.HEALTHY) >= 10


@pytest.mark.parametrize(("kind", "hosts", "seed"), long_except([
    ("link flaps", 4, 1), ("loss", 4, 2), ("two faults at once", 4, 1),
    ("two faults at once", 6, 2), ("healthy", 4, 1)], ("loss", 4, 2), ("healthy", 4, 1)))
def test_faults_of_packets_in_virtual_time_are_named(kind, hosts, seed):
    """Sessions count alike there, so the same law judges them; each case is the same every time."""
    row = drawn.run_case(drawn.draw_case(kind, hosts, seed))
    assert row.right, row.sentence


def test_the_lab_is_asked_for_each_change_of_a_cable_once():
    asked = []
    network = LabNetwork(SimpleNamespace(set_link=lambda *of, up: asked.append((*of, up))))
    for host, up in ((0, True), (0, False), (1, False), (0, False), (0, True), (0, True)):
        network.set_cable(host, 1, up=up)
    assert asked == [(0, 1, False), (1, 1, False), (0, 1, True)]


def test_a_path_counts_what_its_link_lost():
    lab = PacketLab(2, 1)
    job = PacketJob(lab, [Load(0, 1)])
    lab.lose(0, 1, 0.05)
    job.run(1)
    links = [lab.world.link_counts(lab.up[0][port]) for port in (0, 1)]
    far = [lab.world.path_counts(0, 1, port) for port in (0, 1)]
    near = [lab.world.path_counts(0, 0, port) for port in (0, 1)]
    assert links[0].dropped == 0
    assert links[1].dropped > 20
    assert [there.due - there.arrived for there in far] == [
        pytest.approx(link.dropped, abs=3) for link in links]  # the last ones nobody knows of yet
    assert all(here.sent >= there.due for here, there in zip(near, far, strict=True))
    assert lab.world.path_counts(0, 0, 2) is None
