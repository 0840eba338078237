"""The interfaces that are set up: named ones, and those by default."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.harp.cli.setup.fake_host import FakeHost, fails, run


@pytest.mark.parametrize(("text", "names"), [
    ("eth1", "1"), ("eth1..eth3", "123"), ("eth2,eth1", "21"), ("eth1..eth2,eth2..eth3", "123"),
    (" eth1 , eth7..eth8", "178"), ("eth0", "0"), ("eth4..eth4", "4")])
def test_lists_and_ranges(host, text, names):
    output = run(host, "--dry-run", "--nics", text)
    assert output.startswith("# NICs: " + ", ".join(f"eth{number}" for number in names) + "\n")


@pytest.mark.parametrize(("text", "sentence"), [
    ("eth9", 'there is no NIC "eth9" here; the nearest name is eth'),
    ("eth7..eth9", 'there is no NIC "eth9" here'),
    ("lo", 'there is no NIC "lo" here'),
    ("eth3..eth1", '"eth3..eth1" is not a range'), ("eth1..ens3", '"eth1..ens3" is not a range'),
    ("eth1..", '"eth1.." is not a range'), ("..eth1", '"..eth1" is not a name'),
    ("eth1..eth99999", "is not a range"), ("eth..eth1", "is not a range"), ("", '"" is not a name'),
    ("eth1,,eth2", '"" is not a name')])
def test_wrong_lists(host, text, sentence):
    assert sentence in fails(host, "--nics", text)


def test_a_card_counts_if_it_is_up_has_an_address_and_belongs_to_nothing(host):
    host.card("eth2", up=False)
    host.without_address = {"eth3"}
    host.file("/sys/class/net/eth4/master/ifindex", "9")
    host.routes["-6"] = ("default proto ra metric 1024\n\tnexthop via fe80::1 dev eth5 weight 1\n"
                         "\tnexthop via fe80::1 dev eth6 weight 1\n")
    host.routes["-4"] += "default via 10.0.7.1 dev eth7 proto dhcp metric 200\n"
    host.cards["veth3"] = replace(host.cards["eth1"], name="veth3")
    assert run(host, "--dry-run").startswith("# NICs: eth1, eth7, eth8\n")


def test_no_card_is_one_sentence(tmp_path):
    host = FakeHost(tmp_path)
    assert run(host, "--dry-run") == \
        "# name the NICs by --nics; none is chosen by default: there is no card\n"
    host.card("eth1", up=False)
    assert "eth1 is down or without carrier" in fails(host)


def test_a_host_with_one_card_sees_what_would_be_done_and_the_next_command(tmp_path):
    host = FakeHost(tmp_path)
    host.card("eth0")
    host.card("eth1", up=False)
    before = host.everything()
    lines = run(host, "--dry-run", "--queues", "2", "--hugepages", "0").splitlines()
    assert lines[0].endswith("eth0 carries the default route, eth1 is down or without carrier")
    assert "ethtool -G eth0 rx 4096 tx 4096" in lines
    assert lines[-1] == "# next: harp setup --nics eth0 --queues 2 --hugepages 0"
    assert host.everything() == before
    assert "eth0 carries the default route" in fails(host, "--queues", "2", "--hugepages", "0")
    run(host, *lines[-1].split()[4:])
    assert host.everything() != before
