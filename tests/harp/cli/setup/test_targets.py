"""Targets: queues, rings, and remarks on what XDP asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harp.net import nics
from tests.harp.cli.setup.fake_host import CONF, FakeHost, run, small


def test_a_bond_is_set_up_by_its_members(tmp_path):
    host = small(tmp_path)
    host.card("eth2", node=0)
    host.cards["bond0"] = nics.Nic("bond0", "bonding", True, 1500, 1, None, "native", None, None,
                                   None, None)
    host.queues["bond0"] = host.sizes_of_rings["bond0"] = {}
    host.file("/sys/class/net/bond0/bonding/slaves", "eth1 eth2")
    for name in ("eth1", "eth2"):
        host.file(f"/sys/class/net/{name}/master/ifindex", "9")
    before = host.everything()
    output = run(host, "--mtu", "9000")
    assert output.startswith("# NICs: bond0\n")
    assert "ip link set dev bond0 mtu 9000" in host.commands
    assert {"ethtool -G eth1 rx 4096 tx 4096", "ethtool -G eth2 rx 4096 tx 4096"} <= \
        set(host.commands)
    assert not any("-L" in command for command in host.commands)  # no XDP through a bond
    assert "HARP_IFNAME==bond0\n" in host.read(CONF)
    assert sum(host.pages()) - 2 * 512 + 2 == 15
    run(host, "--undo")
    assert host.everything() == before
    host.routes["-4"] = "default via 10.0.0.1 dev bond0\n"
    assert "bond0" not in run(host, "--dry-run").splitlines()[0].partition(":")[0]


@pytest.mark.parametrize(("driver", "kinds", "most", "gpus", "arguments", "queues"), [
    ("mlx5_core", ("combined",), 64, 0, (), "combined 6"),
    ("mlx5_core", ("combined",), 64, 8, (), "combined 8"),
    ("mlx5_core", ("combined",), 64, 1, (), "combined 1"),
    ("mlx5_core", ("combined",), 7, 8, (), "combined 7"),
    ("ena", ("combined",), 8, 0, (), "combined 4"),  # XDP needs the other half
    ("gve", ("rx", "tx"), 16, 16, (), "rx 8 tx 8"),
    ("ena", ("combined",), 32, 0, ("--queues", "20"), "combined 16"),
    ("e1000e", ("combined",), 8, 2, (), "combined 6"),
    ("e1000e", ("combined",), 8, 2, ("--queues", "20"), "combined 8"),
    ("igc", ("rx", "combined"), 8, 3, (), "rx 6 combined 3"),
])
def test_queues(tmp_path, driver, kinds, most, gpus, arguments, queues):
    host = FakeHost(tmp_path, gpus=gpus)
    host.card("eth1", driver=driver, kinds=kinds, now=6, most=most,
              xdp="generic" if driver == "e1000e" else "native")
    run(host, "--nics", "eth1", *arguments)
    assert " ".join(f"{kind} {now}" for kind, (now, _) in host.queues["eth1"].items()) == queues


def test_rules_that_steer_packets_are_named(host):
    output = run(host, "--dry-run")
    assert "# eth1: mlx5_core, XDP zero copy; steering: by source port, 1 of 4 meets an engine's " \
           "queue (the driver takes rules)\n" in output
    assert "one queue, no steering needed" in run(host, "--dry-run", "--queues", "1")


def test_receive_and_transmit_queues_are_as_many(tmp_path):
    host = FakeHost(tmp_path)
    host.card("eth1", driver="gve", kinds=("rx", "tx"))
    host.queues["eth1"] = {"rx": (13, 16), "tx": (2, 12)}  # XDP asks for equal ones
    run(host, "--nics", "eth1")
    assert host.queues["eth1"] == {"rx": (6, 16), "tx": (6, 12)}


def test_a_packet_that_is_too_long_for_xdp_is_reported(tmp_path):
    host = FakeHost(tmp_path)
    host.card("eth1")
    host.cards["eth1"] = replace(host.cards["eth1"], several_buffers=False)
    assert "--mtu 3498" not in run(host, "--nics", "eth1", "--dry-run")
    assert "for xdp, --mtu 3498" in run(host, "--nics", "eth1", "--dry-run", "--mtu", "9001")


def test_an_mtu_that_costs_zero_copy_is_reported(tmp_path):
    host = FakeHost(tmp_path)
    host.card("eth1", xdp="zero copy")
    assert "--mtu" not in run(host, "--nics", "eth1", "--dry-run", "--mtu", "3686")
    assert "zero copy up to --mtu 3686" in run(host, "--nics", "eth1", "--dry-run", "--mtu", "8500")


def test_a_card_that_cannot_be_tuned_is_used_as_it_is(tmp_path):
    host = FakeHost(tmp_path)
    host.card("eth1", kinds=(), ring=None, xdp="generic")
    run(host, "--nics", "eth1", "--hugepages", "0")
    assert not any("ethtool" in command for command in host.commands)
    assert "HARP_IFNAME==eth1\n# harp setup: end" in host.read(CONF)


def test_rings_do_not_shrink(tmp_path):
    host = FakeHost(tmp_path)
    host.card("eth1", ring=(8192, 8192))
    host.card("eth2", ring=(512, 1024))
    run(host, "--nics", "eth1,eth2")
    assert host.sizes_of_rings["eth1"]["rx"] == (8192, 8192)
    assert host.sizes_of_rings["eth2"]["rx"] == (1024, 1024)
