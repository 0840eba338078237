"""``harp setup`` on hosts in a folder: what it wants, and that undo restores what was there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.cli import conf, env
from harp.cli.setup import setup, state
from harp.net import nics
from tests.harp.cli.setup.fake_host import GIB, MIB, FakeHost, fails, run, small
from tests.support import PATIENCE_S, ROOT
from tests.support.levels import draws

CONF = "/etc/harp/harp.conf"


@pytest.fixture
def host(tmp_path):
    """Two nodes, eight cards, and the one that everybody comes in by."""
    made = FakeHost(tmp_path, {0: "0-7", 1: "8-15"}, gpus=32)
    made.card("eth0", driver="ena")
    for number in range(1, 9):
        made.card(f"eth{number}", driver="mlx5_core", most=64, xdp="zero copy",
                  node=(number - 1) // 4)
    return made


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


def test_each_command_is_shown_before_it_runs(host):
    seen = []
    host.write, wrote = lambda path, text: (seen.append(list(host.commands)), wrote(path, text)), \
        host.write
    host.dies_at = "eth2 combined"
    result = CliRunner().invoke(setup, [], obj=host)
    assert host.commands[-1] == "ethtool -L eth2 combined 4"
    assert host.commands[-1] in result.output
    assert json.loads(host.read(state.FILE))["before"]["queues eth2"] == "combined 2"


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


def test_undo_knows_what_was_there_before_the_first_time(host):
    before = host.everything()
    run(host, "--nics", "eth1..eth3", "--mtu", "8500")
    run(host, "--nics", "eth3,eth4", "--mtu", "9000", "--queues", "5")
    assert host.cards["eth3"].mtu == 9000
    assert host.queues["eth3"]["combined"] == (5, 64)
    run(host, "--undo")
    assert host.everything() == before


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


@pytest.mark.parametrize(("text", "why"), [
    ("", "it is no JSON: line 1, column 1"), ("{", "it is no JSON: line 1"),
    ("[]", "all of it is []: an object is possible"), ('{"before": 1}', "before is 1: an object"),
    ('{"before": {"mtu eth1": "15', "it is no JSON: line 1"),
    ("[" * 100_000, "it is no JSON of ours"),
    ('{"before": {"mtu eth1": [1]}}', "before.mtu eth1 is [1]: a text is possible"),
    ('{"before": {"colour eth1": "red"}}',
     "before has 'colour eth1', which harp setup does not change"),
    ("\udcff\udcfe\0", "it is no JSON")])
def test_a_file_that_does_not_say_what_was_there(host, text, why):
    host.store(state.FILE, text)
    for arguments in ([], ["--undo"]):
        said = fails(host, *arguments)
        assert f"{state.FILE} cannot be read, so undo is not possible: {why}" in said
        assert "repair it, or remove it" in said


def test_a_folder_in_the_place_of_the_file(host):
    (host.root / state.FILE[1:]).mkdir(parents=True)
    assert "so undo is not possible: it is a directory, or" in fails(host, "--undo")


def test_bytes_that_are_no_text_stay_in_the_settings(host):
    file = host.root / CONF[1:]
    file.parent.mkdir(parents=True)
    file.write_bytes(own := b"# r\xe9seau\r\nHARP_PATHS=4\n")
    assert "# r\ufffdseau" in run(host)
    assert file.read_bytes().endswith(own)
    run(host, "--undo")
    assert file.read_bytes() == own


def test_two_at_a_time(host):
    with host.alone():
        for arguments in ([], ["--undo"]):
            assert "another harp setup is running on this host" in fails(host, *arguments)
        run(host, "--dry-run")
    run(host)


# ---- Which cards ----

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


# ---- Queues, rings ----

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


# ---- The file that the plugin reads ----

def test_lines_of_the_user_stay(host):
    mine = "# mine\nHARP_TIMEOUT=60\n\n"
    host.file(CONF, mine.rstrip("\n") + "\n")
    before = host.everything()
    run(host)
    text = host.read(CONF)
    assert text.endswith("# mine\nHARP_TIMEOUT=60\n\n")
    host.store(CONF, text + "HARP_CC=swift\n")
    run(host, "--nics", "eth1")
    assert host.read(CONF).count("HARP_IFNAME") == 1
    host.store(CONF, text)
    run(host, "--undo")
    assert host.everything() == before


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
