"""``harp setup`` on hosts in a folder: what it wants, and that undo restores what was there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.cli import conf, env
from harp.cli.setup import setup
from tests.harp.cli.setup.fake_host import CONF, GIB, MIB, FakeHost, fails, run
from tests.support import PATIENCE_S, ROOT
from tests.support.levels import draws

# ---- The whole ----

def test_a_host_with_eight_cards(host):
    output = run(host)
    assert host.queues["eth1"] == {"combined": (4, 64)}  # 32 GPUs share 8 cards
    assert host.sizes_of_rings["eth8"] == {"rx": (4096, 8192), "tx": (4096, 8192)}
    assert host.pages(0) == host.pages(1) == (23, 2 * 512)  # 8 x 5 + 10 GiB on two nodes
    assert host.read("/proc/sys/net/core/rmem_max") == f"{8 << 20}\n"
    assert host.read(CONF).splitlines()[1:-1] == [
        "HARP_IFNAME==" + ",".join(f"eth{number}" for number in range(1, 9))]
    affinities = host.affinities()
    for numbers, cpus in (((1, 2), range(8)), ((3, 4), range(8)), ((7, 8), range(8, 16))):
        assert sorted(int(affinities[f"eth{number}-Tx-Rx-{queue}"])
                      for number in numbers for queue in range(4)) == list(cpus)
    assert "harp setup --undo reverts them" in output


def test_the_card_of_the_default_route_is_left_alone(host):
    run(host)
    assert not any("eth0" in command for command in host.commands)
    assert host.queues["eth0"] == {"combined": (2, 8)}
    assert "8-" not in host.affinities()["eth0-Tx-Rx-0"]


def test_neighbours_are_asked_for_again_soon(host):
    host.file("/proc/sys/net/ipv4/neigh/eth2/retrans_time_ms", "20")
    run(host)
    asked = {(family, card): host.read(f"/proc/sys/net/{family}/neigh/{card}/retrans_time_ms")
             for family in ("ipv4", "ipv6") for card in ("eth0", "eth1", "eth2")}
    assert asked["ipv4", "eth1"] == asked["ipv6", "eth2"] == "100\n"
    assert asked["ipv4", "eth2"] == "20\n"
    assert asked["ipv4", "eth0"] == "1000\n"


def test_the_second_time_nothing_is_done(host):
    run(host)
    before, commands = host.everything(), list(host.commands)
    assert "nothing to change" in run(host)
    assert (host.everything(), host.commands) == (before, commands)


def test_undo_restores_what_was_there(host):
    before = host.everything()
    run(host)
    assert host.everything() != before
    assert "everything is restored" in run(host, "--undo")
    assert host.everything() == before
    assert not host.find("/etc/harp")
    assert not host.find("/var/lib/harp")
    assert "nothing to undo" in run(host, "--undo")


def test_a_dry_run_changes_nothing_and_needs_no_right(host):
    before = host.everything()
    host.root_user, host.tools = False, {"ip"}
    output = run(host, "--dry-run")
    assert "\nethtool -L eth1 combined 4\n" in output
    assert "HARP_IFNAME==eth1,eth2" in output
    assert "ethtool is not installed: apt-get install ethtool" in output
    assert output.endswith("# nothing was changed: --dry-run\n")
    assert (host.everything(), host.commands) == (before, [])
    assert "only root may change this host; --dry-run" in fails(host)


def test_a_dry_run_of_undo(host):
    run(host)
    before, commands = host.everything(), list(host.commands)
    output = run(host, "--undo", "--dry-run")
    assert "\nethtool -L eth1 combined 2\n" in output
    assert f"rm {CONF}\n" in output
    assert (host.everything(), host.commands) == (before, commands)


# ---- When something goes wrong ----

PARTS = ("mtu", "-L eth1", "-G eth1", "-L eth2", "-G eth2", "smp_affinity", GIB, MIB, "rmem_max",
         "wmem_max", "ipv4/neigh/eth1", "ipv6/neigh/eth2")


@pytest.mark.parametrize("part", PARTS)
def test_a_run_that_is_cut_off_can_be_undone(tmp_path, part):
    host = FakeHost(tmp_path, gpus=6)
    for number in range(3):
        host.card(f"eth{number}")
    before = host.everything()
    host.dies_at = part
    result = CliRunner().invoke(setup, ["--mtu", "9000"], obj=host)
    assert result.exit_code == 1
    assert part in host.commands[-1]
    host.dies_at = None
    run(host, "--undo")
    assert host.everything() == before


@pytest.mark.parametrize("part", ["-L eth2", "-G eth1", "mtu"])
def test_a_refused_change_is_named_and_the_rest_is_done(host, part):
    before = host.everything()
    host.refuses = {part: "Operation not supported"}
    mtu = ["--mtu", "9000", "--nics", "eth8", "--queues", "4"] if part == "mtu" else []
    output = run(host, *mtu, status=1)
    assert "#   refused: Operation not supported\n" in output
    assert re.search(r"# 1 of \d+ changes were refused; the others were made", output)
    assert sum(part in command for command in host.commands) == 1
    assert host.queues["eth8"]["combined"] == (4, 64)
    assert host.read(CONF) is not None
    run(host, "--undo")
    assert host.everything() == before


def test_what_harp_runs_without_is_no_failure(host):
    host.refuses = {"smp_affinity": "Input/output error", "rmem_max": "Permission denied"}
    output = run(host)
    assert "refused: Input/output error; HARP runs without it" in output
    assert "refused: Permission denied; HARP runs without it" in output
    assert run(host).endswith("# nothing to change\n")


def test_the_process_that_moves_interrupts_is_named(host):
    host.file("/proc/17/comm", "bash")
    assert "irqbalance" not in run(host, "--dry-run")
    host.file("/proc/18/comm", "irqbalance")
    assert "# irqbalance is running and will move these interrupts" in run(host, "--dry-run")


def test_unrestored_settings_are_named_and_can_be_undone_later(host):
    before = host.everything()
    run(host)
    host.refuses = {"-L eth3": "Device or resource busy"}
    assert "refused: Device or resource busy" in run(host, "--undo", status=1)
    assert host.queues["eth4"]["combined"] == (2, 64)
    host.refuses = {}
    run(host, "--undo")
    assert host.everything() == before


def test_a_card_that_is_gone_does_not_stop_undo(host):
    run(host)
    del host.cards["eth8"]
    host.queues["eth8"] = host.sizes_of_rings["eth8"] = {}
    assert "everything is restored" in run(host, "--undo")


def test_a_missing_tool_is_named_with_its_package(host):
    host.tools = {"ip"}
    assert "ethtool is not installed: apt-get install ethtool (Debian, Ubuntu) or dnf install " \
           "ethtool (RPM)" in fails(host)
    host.tools = {"ethtool"}
    assert "apt-get install iproute2 (Debian, Ubuntu) or dnf install iproute (RPM), or name" in \
        fails(host)
    run(host, "--nics", "eth1")


def test_two_at_a_time(host):
    with host.alone():
        for arguments in ([], ["--undo"]):
            assert "another harp setup is running on this host" in fails(host, *arguments)
        run(host, "--dry-run")
    run(host)


# ---- The file that the plugin reads ----

def test_the_plugin_knows_what_is_written(host, tmp_path):
    run(host)
    file = tmp_path / CONF.lstrip("/")
    assert conf.parse(file.read_text(), "").keys() == {"HARP_IFNAME"}
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith(("HARP_", "NCCL_"))}
    done = subprocess.run([sys.executable, str(ROOT / "tests" / "support" / "plugin_says.py"),
                           str(env.find_plugin())], env={**clean, "HARP_CONF_FILE": str(file)},
                          capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    warnings = [text for level, text in json.loads(done.stdout)["said"] if level == "warn"]
    assert len(warnings) == 1  # that there are no such cards here
    assert 'HARP_IFNAME "=eth1,eth2,eth3' in warnings[0]


# ---- The command ----

def test_undo_goes_alone(host):
    for wish in (["--nics", "eth1"], ["--mtu", "9000"], ["--queues", "1"], ["--hugepages", "1"]):
        assert "--undo restores everything" in fails(host, "--undo", *wish)


@given(st.data())
@settings(max_examples=draws(20))
def test_twice_is_once_and_undo_is_never(data):
    draw = data.draw
    with tempfile.TemporaryDirectory() as folder:
        nodes = draw(st.sampled_from([{0: "0-7"}, {0: "0-3", 1: "4-7"}]))
        host = FakeHost(Path(folder), nodes, draw(st.integers(1, 128)),
                        draw(st.sampled_from([(GIB, MIB), (MIB,), (GIB,), ()])),
                        draw(st.integers(0, 4)))
        host.most_pages = {GIB: draw(st.integers(0, 60))}
        for node in nodes:
            for size in (GIB, MIB):
                if host.find(host.pool(node, size)):
                    host.file(host.pool(node, size), str(draw(st.integers(0, 600))))
        names = [f"eth{number}" for number in range(1, 1 + draw(st.integers(1, 4)))]
        for name in names:
            most = draw(st.integers(1, 9))
            host.card(name, driver=draw(st.sampled_from(["ena", "mlx5_core", "e1000"])),
                      now=draw(st.integers(1, most)), most=most,
                      kinds=draw(st.sampled_from([(), ("combined",), ("rx", "tx"),
                                                  ("tx", "combined")])),
                      node=draw(st.sampled_from([-1, *nodes])),
                      ring=draw(st.sampled_from([None, (64, 256), (5000, 8192)])),
                      xdp=draw(st.sampled_from(["native", "zero copy", "generic"])))
        wish = draw(st.sampled_from([[], ["--mtu", "4000"], ["--queues", "2"],
                                     ["--hugepages", "0"]]))
        before = host.everything()
        run(host, "--nics", ",".join(names), *wish)
        after, commands = host.everything(), len(host.commands)
        run(host, "--nics", ",".join(names), *wish)
        assert host.everything() == after
        assert all(GIB in command for command in host.commands[commands:])
        run(host, "--undo")
        assert host.everything() == before
