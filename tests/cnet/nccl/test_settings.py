"""Settings of the plugin: from the environment and from files."""

from __future__ import annotations

import re

import pytest

from tests.cnet.nccl.asked_plugin import INVALID_USAGE, ask, names, warnings
from tests.support import ROOT

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


def test_a_request_to_encrypt_gets_a_warning():
    found = ask(HARP_PORT="mem", NCCL_SOCKET_TLS_KEY="secret")
    said, = warnings(found)
    assert "NCCL_SOCKET_TLS_KEY is set" in said
    assert "secret" not in said
    assert "encrypts none" in said
    assert warnings(ask(HARP_PORT="mem", NCCL_DEBUG="WARN")) == []
