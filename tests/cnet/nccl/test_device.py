"""Devices of the plugin: the interfaces that it finds, and what it says of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from lab.veth import Net
from tests.cnet.nccl.asked_plugin import SYSTEM_ERROR, add_links, ask, names, root_only, warnings

if TYPE_CHECKING:
    from lab.namespace import Namespace


def test_every_property_is_as_nccl_needs_it():
    device, = ask(HARP_PORT="mem")["devices"]
    assert device == {
        "name": "harp-mem", "pci": "", "guid": 1, "pointers": 1, "global": 0, "flush": 0,
        "speed": 100000, "port": 0, "latency": 0, "comms": 65536, "receives": 1, "offload": 0,
        "offload_version": 0, "parts": [0], "p2p": 1 << 30, "collective": 1 << 30, "requests": 1,
        "rail": -1, "plane": -1}


def test_loopback_is_used_where_it_is_asked_for():
    found = ask("listen", HARP_PORT="udp", HARP_IFNAME="=lo")
    assert found["name"] == "HARP"
    assert (found["init"], found["listen"], found["finalize"]) == (0, 0, 0)
    assert found["devices"] == [{**found["devices"][0], "name": "lo", "pci": "", "pointers": 1,
                                 "receives": 1}]
    assert any(re.match(r"lo, engine 1 of 1: udp: lo 127.0.0.1:\d+, MTU", text)
               for _, text in found["said"])


def test_no_fitting_interface_is_an_error_that_lists_them():
    found = ask(HARP_IFNAME="=nosuch0")
    assert found["init"] == SYSTEM_ERROR
    assert re.search(r'fits HARP_IFNAME "=nosuch0"; .* there are: .*lo', warnings(found)[0])


def add_bridge(space: Namespace, name: str) -> None:
    space.run("ip", "link", "add", name, "type", "bridge")
    space.run("ip", "link", "add", "port0", "type", "veth", "peer", "guest0")
    space.run("ip", "link", "set", "port0", "master", name)
    space.run("ip", "address", "add", "172.17.0.1/16", "dev", name)
    for link in ("port0", "guest0", name):
        space.run("ip", "link", "set", link, "up")


@root_only
@pytest.mark.parametrize(("wanted", "devices"), [
    ({}, ["eth0", "eth1", "mlx0"]),
    ({"HARP_IFNAME": "eth"}, ["eth0", "eth1"]),
    ({"HARP_IFNAME": "=eth"}, []),
    ({"HARP_IFNAME": "=eth1,mlx0"}, ["eth1", "mlx0"]),
    ({"HARP_IFNAME": "^eth,lo"}, ["mlx0", "docker0"]),
    ({"HARP_IFNAME": "^=eth1,lo,docker0"}, ["eth0", "mlx0"]),
    ({"HARP_IFNAME": "docker"}, ["docker0"]),
    ({"NCCL_SOCKET_IFNAME": "mlx"}, ["mlx0"]),
    ({"NCCL_SOCKET_IFNAME": "mlx", "HARP_IFNAME": "eth1:1"}, ["eth1"]),
])
def test_interfaces_are_named_as_nccl_does(wanted, devices):
    with Net() as net:
        space = net.namespace()
        add_links(space, "eth0", "eth1", "mlx0")
        add_bridge(space, "docker0")
        found = ask(before=tuple(space.command()), **wanted)
        assert names(found) == devices
        assert len({device["guid"] for device in found["devices"]}) == len(devices)


@root_only
def test_an_interface_whose_cable_is_out_is_no_device():
    with Net() as net:
        space = net.namespace()
        add_links(space, "eth0", "eth1")
        space.run("ip", "link", "set", "peer1", "down")
        assert names(ask(before=tuple(space.command()))) == ["eth0"]
        found = ask(before=tuple(space.command()), HARP_IFNAME="=eth1")
        assert found["init"] == SYSTEM_ERROR
        assert "there are: lo eth0 eth1 (no carrier)" in warnings(found)[0]


@root_only
def test_cards_come_before_pairs_and_pairs_before_bridges_whatever_their_names():
    with Net() as net:
        space = net.namespace()
        add_bridge(space, "eth7")
        before = tuple(space.command())
        assert names(ask(before=before)) == ["eth7"]
        add_links(space, "cali0")
        assert names(ask(before=before)) == ["cali0"]
        space.run("ip", "link", "add", "net1", "link", "peer0", "type", "macvlan")
        space.run("ip", "address", "add", "10.78.0.1/24", "dev", "net1")
        space.run("ip", "link", "set", "net1", "up")
        assert names(ask(before=before)) == ["net1"]


@root_only
def test_an_address_of_the_host_on_lo_is_used_where_no_card_has_one():
    """As on hosts that tell their routers of it by BGP."""
    with Net() as net:
        space = net.namespace()
        before = tuple(space.command())
        add_links(space, "cali0")
        space.run("ip", "address", "add", "10.99.0.7/32", "dev", "lo")
        device, = ask(before=before)["devices"]
        assert device["name"] == "lo"
        assert any("10.99.0.7" in text for _, text in ask(before=before)["said"])


@root_only
@pytest.mark.parametrize(("family", "address"), [("AF_INET", "10.77.0.1"), ("AF_INET6", "fd00::1"),
                                                 (None, "10.77.0.1")])
def test_the_family_is_chosen_as_nccl_chooses(family, address):
    with Net() as net:
        space = net.namespace()
        add_links(space, "eth0")
        space.run("ip", "address", "add", "fd00::1/64", "dev", "eth0", "nodad")
        wanted = {"NCCL_SOCKET_FAMILY": family} if family else {}
        found = ask(before=tuple(space.command()), **wanted)
        assert any(f"eth0, {address}" in text for _, text in found["said"]), found["said"]


@root_only
def test_loopback_is_used_where_there_is_nothing_else():
    with Net() as net:
        assert names(ask(before=tuple(net.namespace().command()))) == ["lo"]


@root_only
def test_a_bond_is_one_device_and_its_members_are_none(tmp_path):
    sys_net = tmp_path / "net"
    card = tmp_path / "pci0000:00" / "0000:00:05.0"
    for folder in (card, sys_net / "bond0" / "bonding", sys_net / "eth0" / "master" / "bonding",
                   sys_net / "eth1" / "master" / "bonding"):
        folder.mkdir(parents=True)
    (sys_net / "eth1" / "device").symlink_to(card)
    (sys_net / "bond0" / "bonding" / "slaves").write_text("eth1 eth0\n")
    (sys_net / "bond0" / "speed").write_text("50000\n")
    with Net() as net:
        space = net.namespace()
        add_links(space, "bond0", "eth0", "eth1")
        mounted = f'mount --bind {sys_net} /sys/class/net && exec "$@"'
        found = ask(before=(*space.command(), "unshare", "--mount", "sh", "-c", mounted, "sh"))
        seen = [(device["name"], device["speed"], device["pci"]) for device in found["devices"]]
        assert seen == [("bond0", 50000, str(card))]


@root_only
def test_a_card_with_several_addresses_is_one_device():
    with Net() as net:
        space = net.namespace()
        add_links(space, "eth0", "eth1")
        space.run("ip", "address", "add", "10.78.0.1/24", "dev", "eth0", "label", "eth0:1")
        space.run("ip", "address", "flush", "dev", "eth1")
        space.run("ip", "address", "add", "10.78.1.1/24", "dev", "eth1", "label", "eth1:work")
        assert names(ask(before=tuple(space.command()))) == ["eth0", "eth1"]


@root_only
def test_a_vlan_lies_where_its_card_does_and_a_card_is_one_device(tmp_path):
    sys_net = tmp_path / "net"
    card = tmp_path / "pci0000:00" / "0000:00:05.0"
    for folder in (card, sys_net / "eth0", sys_net / "eth0.5", sys_net / "bond0" / "bonding",
                   sys_net / "bond0.7", sys_net / "eth1"):
        folder.mkdir(parents=True)
    (sys_net / "eth0" / "device").symlink_to(card)
    (sys_net / "eth1" / "device").symlink_to(tmp_path)
    (sys_net / "eth0.5" / "lower_eth0").symlink_to(sys_net / "eth0")
    (sys_net / "bond0" / "bonding" / "slaves").write_text("eth1\n")
    (sys_net / "bond0.7" / "lower_bond0").symlink_to(sys_net / "bond0")
    with Net() as net:
        space = net.namespace()
        add_links(space, "eth0", "eth0.5", "bond0.7")
        mounted = f'mount --bind {sys_net} /sys/class/net && exec "$@"'
        before = (*space.command(), "unshare", "--mount", "sh", "-c", mounted, "sh")
        found = [(device["name"], device["pci"]) for device in ask(before=before)["devices"]]
        assert found == [("eth0", str(card)), ("bond0.7", str(tmp_path))]
        alone, = ask(before=before, HARP_IFNAME="=eth0.5")["devices"]
        assert (alone["name"], alone["pci"]) == ("eth0.5", str(card))
