"""Legs: each direction of each path, as counted by both of its ends."""

import pytest

from harp.cli.diagnose.legs import Port, picture_of
from tests.support.diagnosis_cluster import LOOKS, PORTS, STEP_S, Way, all_to_all


def leg_between(picture, source, target, port=0):
    """One of the legs that lead from a port of a host to another; each connection has its own."""
    ends = Port(f"h{source}", f"10.0.{port}.{source + 1}"), \
        Port(f"h{target}", f"10.0.{port}.{target + 1}")
    return next(leg for leg in picture.legs if (leg.source, leg.target) == ends and leg.sent)


def test_a_path_is_two_legs_that_know_each_other():
    cluster = all_to_all(3)
    picture = picture_of(cluster.reports())
    assert len(picture.legs) == 2 * len(cluster.pairs) * len(PORTS)
    for leg in picture.legs:
        back = picture.reverse(leg)
        assert (back.source, back.target) == (leg.target, leg.source)
        assert picture.reverse(back) is leg
    assert (picture.hosts, picture.unheard) == (["h0", "h1", "h2"], [])


def test_a_leg_has_what_its_sender_sent_and_its_receiver_counted():
    cluster = all_to_all(2)
    cluster.ways[0, 1, 0] = Way(rate=1000, loss=0.1)
    leg = leg_between(picture_of(cluster.reports()), 0, 1)
    assert leg.sent_each == [1000] * (LOOKS - 1)
    assert leg.due == leg.sent == 1000 * (LOOKS - 1)
    lost = sum(lost for _, lost in leg.losses_each)
    assert 0.05 * leg.due < lost < 0.15 * leg.due
    assert sum(leg.delivered_each) == leg.due - lost
    assert leg.rate_bps == pytest.approx(
        (leg.due - lost) * leg.frame_bytes * 8 / (STEP_S * (LOOKS - 1)))


def test_without_its_receiver_a_leg_has_the_losses_that_its_sender_knows():
    cluster = all_to_all(2)
    cluster.ways[0, 1, 0] = Way(rate=1000, loss=0.1)
    near, _ = cluster.reports()
    whole, alone = picture_of(cluster.reports()), picture_of([near])
    assert alone.unheard == ["the host of 10.0.0.2"]
    leg = next(leg for leg in alone.legs if leg.sent_each == [1000] * 4)
    assert (leg.received, leg.target.host, leg.is_silent) == (False, alone.unheard[0], None)
    assert leg.delivered_each == leg_between(whole, 0, 1).delivered_each


def test_a_leg_is_silent_where_nothing_comes_though_packets_are_sent():
    cluster = all_to_all(2)
    cluster.ways[0, 1, 1] = Way(open=False)
    picture = picture_of(cluster.reports())
    assert leg_between(picture, 0, 1, port=1).is_silent
    assert not leg_between(picture, 0, 1, port=0).is_silent
    assert picture.name(Port("h0", "10.0.1.1")) == "port eth1 (10.0.1.1) of h0"
