"""HARP's NCCL plugin seen from outside: settings, devices, ports, symbols.

Whether it moves data as NCCL expects is tried by the client of lab/nccl_client.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from lab.c_programs import PLAIN
from lab.namespace import Namespace, why_unusable
from lab.nccl_pair import harp
from lab.veth import Net, veth_pair
from tests.support import PATIENCE_S, ROOT

SAYS = ROOT / "tests" / "support" / "plugin_says.py"
root_only = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
INVALID_USAGE, SYSTEM_ERROR = 5, 2


def ask(*wishes: str, before: tuple[str, ...] = (), **settings: str) -> dict[str, Any]:
    """The plugin's lines with these settings and no others."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("HARP_", "NCCL_"))}
    kept["HARP_CONF_FILE"] = settings.pop("HARP_CONF_FILE", "/dev/null")
    done = subprocess.run([*before, sys.executable, str(SAYS), str(harp(PLAIN)), *wishes],
                          env={**kept, **settings}, capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def warnings(found: dict[str, Any]) -> list[str]:
    return [text for level, text in found["said"] if level == "warn"]


def names(found: dict[str, Any]) -> list[str]:
    return [device["name"] for device in found["devices"]]


# ---- Settings ----

WRONG = {
    "HARP_PORT": ("rdma", "auto, xdp, udp, tcp, mem, or xdp,tcp and udp,tcp for a trial"),
    "HARP_PROGRESS": ("fast", "auto, threads or inline"),
    "HARP_CPUS": ("2-", "CPU numbers and ranges"),
    "HARP_ENGINES": ("0", "auto, or 1 to 16"),
    "HARP_PATHS": ("65", "1 to 64"),
    "HARP_SOCKETS": ("65", "auto, or 1 to 64"),
    "HARP_RAILS": ("x" * 600, "at most 511 characters"),
    "HARP_PLAN": ("x" * 600, "at most 511 characters"),
    "HARP_TUNER": ("x" * 600, "at most 511 characters"),
    "HARP_CRC": ("yes", "auto, on or off"),
    "HARP_CC": ("cubic", "swift or fixed"),
    "HARP_MTU": ("1500 bytes", "576 to 65535"),
    "HARP_SPEED": ("100G", "1 to 1600000 (Mb/s)"),
    "HARP_TRAFFIC_CLASS": ("256", "0 to 255"),
    "HARP_TIMEOUT": ("-1", "1 to 86400 (seconds)"),
    "HARP_STATS": ("yes", "0 or 1"),
    "HARP_DUMP": ("x" * 600, "at most 511 characters"),
    "HARP_FAULTS": ("x" * 600, "at most 511 characters"),
    "HARP_IFNAME": ("x" * 600, "at most 511 characters"),
    "HARP_XDP": ("zero", "auto or copy"),
    "HARP_BUSY_POLL": ("1e3", "0 to 100000 (microseconds)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_an_error_that_says_what_is_possible(name):
    value, allowed = WRONG[name]
    found = ask(**{name: value})
    assert found["init"] == INVALID_USAGE
    assert len(warnings(found)) == 1
    assert name in warnings(found)[0]
    assert allowed in warnings(found)[0]


@pytest.mark.parametrize(("name", "value", "says"), [
    ("HARP_CPUS", "0,65000", r'"0,65000": possible is CPU numbers and ranges, .*, from 0 to \d+'),
    ("HARP_FAULTS", "drop=200%", r'HARP_FAULTS is "drop=200%": drop=200%: it is 0% to 100%'),
    ("HARP_FAULTS", "dorp=1%", r'HARP_FAULTS is "dorp=1%": .* did you mean "drop"'),
    ("HARP_DUMP", "/nosuch/harp.dump", r'HARP_DUMP is "/nosuch/harp.dump": .*can be written'),
    ("HARP_DUMP", "/tmp", r'HARP_DUMP is "/tmp": .*can be written'),
])
def test_a_call_that_could_only_fail_later_is_an_error_at_once(name, value, says):
    found = ask(HARP_PORT="udp", HARP_IFNAME="=lo", **{name: value})
    assert found["init"] == INVALID_USAGE
    said, = warnings(found)
    assert re.search(says, said), said


def test_every_name_is_tried_and_documented():
    source = (ROOT / "cnet" / "nccl" / "settings.c").read_text()
    known = set(re.findall(r'^    \{"(HARP_[A-Z_]+)"', source, re.MULTILINE))
    assert known == {*WRONG, "HARP_CONF_FILE"}
    page = (ROOT / "docs" / "use" / "nccl.md").read_text()
    assert set(re.findall(r"^\| `(HARP_[A-Z_]+)`", page, re.MULTILINE)) == known


NCCL_VARIABLES = (
    "COMM_ID", "NET", "NETDEVS_POLICY", "NET_DISABLE_INTRA", "NET_FORCE_FLUSH", "NET_FORCE_MERGE",
    "NET_GDR_MLOPART", "NET_GDR_READ", "NET_MERGE_LEVEL", "NET_MERGE_POLICY",
    "NET_OPTIONAL_RECV_COMPLETION", "NET_OVERHEAD", "NET_PLUGIN", "NET_PLUGIN_REF_COUNT",
    "NET_SHARED_BUFFERS", "NET_SHARED_COMMS", "NSOCKS_PERTHREAD", "OOB_NET_ENABLE",
    "OOB_NET_IFNAME", "SOCKET_FAMILY", "SOCKET_IFNAME", "SOCKET_INLINE", "SOCKET_MAGIC",
    "SOCKET_MIN_TASKSIZE", "SOCKET_NTHREADS", "SOCKET_POLL_TIMEOUT_MSEC", "SOCKET_RCVBUF",
    "SOCKET_RETRY_CNT", "SOCKET_RETRY_SLEEP_MSEC", "SOCKET_SNDBUF")
"""What NCCL_PARAM and ncclGetEnv name of sockets and networks in src/ of NCCL 2.30.7."""


def test_every_variable_of_nccls_own_about_networks_is_followed_or_named():
    page = (ROOT / "docs" / "use" / "nccl.md").read_text()
    patterns = [name.replace("*", ".*") for name in re.findall(r"`(NCCL_[A-Z_*]+)`", page)]
    unnamed = [name for name in NCCL_VARIABLES
               if not any(re.fullmatch(pattern, f"NCCL_{name}") for pattern in patterns)]
    assert not unnamed


@pytest.mark.parametrize(("name", "meant"), [
    ("HARP_IFNAMES", "HARP_IFNAME"), ("HARP_PROT", "HARP_PORT"), ("HARP_CPU", "HARP_CPUS"),
    ("HARP_TIME_OUT", "HARP_TIMEOUT"), ("HARP_ENGINE", "HARP_ENGINES"),
    ("HARP_SOMETHING_ELSE_ALTOGETHER_THAT_IS_LONG", "HARP_")])
def test_an_unknown_name_is_a_warning_that_names_the_nearest(name, meant):
    found = ask(HARP_PORT="mem", **{name: "1"})
    assert found["init"] == 0
    assert re.fullmatch(rf"NET/HARP : {name} is not known .*; the nearest name is {meant}.*",
                        "NET/HARP : " + warnings(found)[0])


def test_settings_come_from_a_file_and_the_environment_wins(tmp_path):
    file = tmp_path / "harp.conf"
    file.write_text("# as harp setup writes it\n\n  HARP_PORT = mem \nHARP_PATHS=\nHARP_PRT=1\n")
    found = ask(HARP_CONF_FILE=str(file))
    assert names(found) == ["harp-mem"]
    assert f"{file}:5: HARP_PRT is not known" in warnings(found)[0]
    assert names(ask(HARP_CONF_FILE=str(file), HARP_PORT="udp", HARP_IFNAME="=lo")) == ["lo"]


def test_a_byte_order_mark_is_skipped_at_the_front_of_the_file_alone(tmp_path):
    file = tmp_path / "harp.conf"
    file.write_bytes(b"\xef\xbb\xbfHARP_PORT=mem\r\n")
    found = ask(HARP_CONF_FILE=str(file))
    assert (names(found), warnings(found)) == (["harp-mem"], [])
    file.write_bytes(b"HARP_PORT=mem\n\xef\xbb\xbfHARP_PATHS=1\n")
    assert f"{file}:2: " in warnings(ask(HARP_CONF_FILE=str(file)))[0]


def test_a_wrong_line_is_an_error_with_its_place(tmp_path):
    file = tmp_path / "harp.conf"
    file.write_text("HARP_PORT=mem\nHARP_TIMEOUT=soon\n")
    found = ask(HARP_CONF_FILE=str(file))
    assert found["init"] == INVALID_USAGE
    assert f"{file}:2: HARP_TIMEOUT is \"soon\"" in warnings(found)[0]
    file.write_text("port mem\n")
    assert "is no line NAME=value" in warnings(ask(HARP_CONF_FILE=str(file)))[0]
    file.write_text("HARP_CONF_FILE=/etc/other.conf\n")
    elsewhere = ask(HARP_CONF_FILE=str(file))
    assert f"{file}:1: HARP_CONF_FILE is not for a file: " in warnings(elsewhere)[0]


@pytest.mark.parametrize(("name", "why"), [("none", "No such file"), ("", "Is a directory")])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path, name, why):
    missing = ask(HARP_CONF_FILE=str(tmp_path / name))
    assert missing["init"] == INVALID_USAGE
    assert f"cannot be read: {why}" in warnings(missing)[0]


def test_lines_may_be_long(tmp_path):
    file = tmp_path / "harp.conf"
    file.write_text(f"# {'x' * 5000}\nHARP_PORT=mem\n")
    found = ask(HARP_CONF_FILE=str(file))
    assert (names(found), warnings(found)) == (["harp-mem"], [])


# ---- Devices ----

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


def test_lines_about_a_port_begin_as_nccl_names_the_device_of_a_channel():
    """NCCL 2.30 writes "via NET/%s/%d": the plugin's name and the number of the device."""
    found = ask("listen", HARP_PORT="udp", HARP_IFNAME="=lo")
    of_device = [line for line in found["lines"] if line.startswith(f"NET/{found['name']}/0 : ")]
    assert of_device[0] == "NET/HARP/0 : data over udp, 1 path, lo (HARP_PORT)"
    assert of_device[1:] == [line for line in found["lines"] if " : lo: " in line
                             or " : lo, engine" in line]


@pytest.mark.parametrize("progress", ["threads", "inline"])
def test_engines_run_on_the_cpus_that_are_set(progress):
    cpus = sorted(os.sched_getaffinity(0))
    found = ask("listen", HARP_PORT="udp", HARP_IFNAME="=lo", HARP_ENGINES="3",
                HARP_PROGRESS=progress, HARP_CPUS=f"{cpus[-1]},{cpus[0]}")
    assert found["threads"] == [[cpus[-1]], [cpus[0]], [cpus[-1]]]


def test_faults_that_are_asked_for_are_there():
    found = ask("listen", HARP_PORT="udp", HARP_IFNAME="=lo", HARP_FAULTS="drop=1%,seed=7")
    assert any(": chaos of seed 7 over udp: lo " in text for _, text in found["said"])


def test_no_fitting_interface_is_an_error_that_lists_them():
    found = ask(HARP_IFNAME="=nosuch0")
    assert found["init"] == SYSTEM_ERROR
    assert re.search(r'fits HARP_IFNAME "=nosuch0"; .* there are: .*lo', warnings(found)[0])


def add_links(space: Namespace, *links: str) -> None:
    for number, link in enumerate(links):
        space.run("ip", "link", "add", link, "type", "veth", "peer", f"peer{number}")
        space.run("ip", "address", "add", f"10.77.{number}.1/24", "dev", link)
        space.run("ip", "link", "set", link, "up")
        space.run("ip", "link", "set", f"peer{number}", "up")  # who has no address is no device


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


def test_a_request_to_encrypt_gets_a_warning():
    found = ask(HARP_PORT="mem", NCCL_SOCKET_TLS_KEY="secret")
    said, = warnings(found)
    assert "NCCL_SOCKET_TLS_KEY is set" in said
    assert "secret" not in said
    assert "encrypts none" in said
    assert warnings(ask(HARP_PORT="mem", NCCL_DEBUG="WARN")) == []


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


@root_only
@pytest.mark.parametrize("port", ["auto", "xdp", "udp"])
def test_packets_that_no_interface_takes_are_an_error_at_once(port):
    with veth_pair() as (end, _):
        found = ask(before=tuple(end.space.command()), HARP_PORT=port, HARP_MTU="9000")
        assert found["init"] == INVALID_USAGE
        said, = warnings(found)
        assert re.search(r'HARP_MTU is "9000": possible is 576 to 1500 on v1; ip link set dev v1 '
                         r'mtu 9000', said), said


def lines(found: dict[str, Any]) -> list[str]:
    return [text for _, text in found["said"]]


def line_of_engine(found: dict[str, Any]) -> str:
    return next(text for _, text in found["said"] if "engine 1 of 1" in text)


@root_only
def test_auto_opens_no_xdp_where_it_would_copy_and_says_why():
    with veth_pair() as (end, _):
        found = ask("listen", before=tuple(end.space.command()))
        assert re.search(r": tcp:10\.0\.1\.1:\d+ v1, ", line_of_engine(found)), found
        assert "v1: not xdp: a virtual interface has no zero copy" in lines(found)
        forced = ask("listen", before=tuple(end.space.command()), HARP_PORT="xdp")
        assert re.search(r": xdp: v1 queue 0", line_of_engine(forced)), forced


@root_only
def test_auto_tries_zero_copy_of_a_card_and_leaves_nothing_of_it_behind(tmp_path):
    sys_net, card = tmp_path / "net", tmp_path / "pci0000:00"
    for folder in (card, sys_net / "v1"):
        folder.mkdir(parents=True)
    (sys_net / "v1" / "device").symlink_to(card)
    with veth_pair() as (end, _):
        mounted = f'mount --bind {sys_net} /sys/class/net && exec "$@"'
        before = (*end.space.command(), "unshare", "--mount", "sh", "-c", mounted, "sh")
        found = ask("listen", before=before)
        assert re.search(r": tcp:.* v1, ", line_of_engine(found)), found
        assert any(text.startswith("v1: not xdp: the driver of v1 has no zero copy")
                   for text in lines(found)), found
        assert "xdp" not in end.space.run("ip", "link", "show", "dev", "v1")


@root_only
def test_asking_for_xdp_where_it_is_impossible_is_an_error():
    with veth_pair() as (end, _):
        # Without capabilities, as most containers are.
        bare = (*end.space.command(), "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--")
        assert ": tcp:10.0.1.1:" in line_of_engine(ask("listen", before=bare))
        forced = ask("listen", before=bare, HARP_PORT="xdp")
        assert forced["listen"] == SYSTEM_ERROR
        assert "v1 cannot be used: " in warnings(forced)[0]


def test_a_child_of_fork_gets_an_error():
    found = ask("listen", "fork", HARP_PORT="udp", HARP_IFNAME="=lo")
    assert found["forked"] == INVALID_USAGE
    assert found["finalize"] == 0


@pytest.mark.parametrize(("hard", "warned"), [(4096, True), (20000, False)])
def test_the_limit_of_descriptors_is_raised_to_the_hard_one(hard: int, warned: bool) -> None:
    found = ask(before=("prlimit", f"--nofile=256:{hard}"), HARP_PORT="mem")
    assert found["descriptors"] == hard
    assert any("may open 4096 files at most, enough for 128 peers" in text
               for text in warnings(found)) == warned
