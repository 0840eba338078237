"""``harp check``: what it says of a host, and that it changes nothing and needs no right."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from harp.cli import check
from harp.net import nics
from lab.namespace import why_unusable
from lab.veth import veth_pair
from tests.support import PATIENCE_S

TOPICS = ["kernel", "AF_XDP", "rights", "memlock", "huge pages", "NUMA", "/dev/shm", "CPU",
          "CRC32C", "UDP", "rmem_max", "wmem_max"]


def test_a_line_for_each_thing():
    result = CliRunner().invoke(check.check)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line[8:20].strip() for line in lines[:len(TOPICS)]] == TOPICS
    assert {line.split()[0] for line in lines} <= {"ok", "better", "missing"}
    assert all("  -> " in line for line in lines if not line.startswith("ok"))
    names = {name for _, name in socket.if_nameindex()} - {"lo"}
    assert {line[8:20].strip() for line in lines[len(TOPICS):]} <= names


def test_json_has_the_same():
    said = json.loads(CliRunner().invoke(check.check, ["--json"]).output)
    assert [finding["topic"] for finding in said["host"]] == TOPICS
    for finding in said["host"]:
        assert finding["state"] in {"ok", "better", "missing"}
        assert bool(finding["change"]) or finding["state"] == "ok"
    for nic in said["interfaces"]:
        assert nic["xdp"] in {"zero copy", "native", "generic", None}


def test_the_crc_routine_is_one_that_this_cpu_has():
    found = next(one for one in check.cpu() if one.topic == "CRC32C").found
    chosen, others = found.split(" is the fastest of ")
    assert chosen in others.split(", ")


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_an_interface_is_what_the_kernel_says():
    with veth_pair(mtu=9000, queues=2) as (a, _), a.space.entered():
        end_s = time.monotonic() + 20  # the kernel sees the carrier in its own time
        while not nics.nics()[0].up and time.monotonic() < end_s:
            pass
        nic, = nics.nics()
        assert (nic.name, nic.driver, nic.up, nic.mtu) == (a.device, "veth", True, 9000)
        assert nic.queues == 2
        assert nic.xdp == "native"
        line = check.nic_line(nic)
        assert line.found.startswith("veth, XDP native, 2 queues, MTU 9000")
        a.space.run("ip", "link", "set", a.device, "down")
        down, = nics.nics()
        assert not down.up
        assert f"ip link set {a.device} up" in check.nic_line(down).change


def nic(**known):
    fields = {"name": "eth9", "driver": "ena", "up": True, "mtu": 9001, "queues": 8,
              "queues_most": 16, "xdp": "native", "several_buffers": True, "rss": None,
              "ntuple": None, "node": 1}
    return nics.Nic(**fields | known)


@pytest.mark.parametrize(("known", "change"), [
    ({}, ""),
    ({"xdp": "generic"}, "use the udp port"),
    ({"several_buffers": False}, "one buffer per packet"),
    ({"xdp": "zero copy"}, "ip link set eth9 mtu 3686"),
    ({"xdp": "zero copy", "mtu": 3686}, ""),
    ({"mtu": 1500}, "larger MTU"),
    ({"queues": 16}, "ethtool -L eth9 combined 1: XDP needs half of the queues unused"),
    ({"queues": 16, "driver": "ice"}, ""),
    ({"ntuple": "off"}, ""),  # HARP has no port that a rule could name
    ({"up": False}, "ip link set eth9 up"),
])
def test_what_to_change_about_an_interface(known, change):
    assert change in check.nic_line(nic(**known)).change
    assert bool(check.nic_line(nic(**known)).change) == bool(change)


@pytest.mark.parametrize(("known", "engines", "change"), [
    ({"queues": 2}, 4, "ethtool -L eth9 combined 4: one queue per engine"),
    ({"queues": 2}, 12, "ethtool -L eth9 combined 8: one queue per engine"),
    ({"queues": 2, "driver": "ice"}, 12, "ethtool -L eth9 combined 12: one queue per engine"),
    ({"queues": 4}, 4, ""), ({"queues": 1, "queues_most": None}, 4, "")])
def test_each_engine_wants_a_queue(known, engines, change):
    assert check.nic_line(nic(**known), engines).change == change


@pytest.mark.parametrize(("driver", "features", "xdp"), [
    ("virtio_net", 0b1011, "zero copy"), ("veth", 0b0011, "native"), ("e1000", 0, "generic"),
    ("ice", None, "zero copy"), ("ena", None, "native"), ("e1000", None, "generic"),
    (None, None, None)])
def test_a_driver_can_do_what_it_reports_or_what_the_table_knows(driver, features, xdp):
    assert nics._xdp(driver, features) == xdp


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_nobody_may_run_it():
    code = """
import os, sys
import harp.cli.check as check, harp.net.nics  # loaded as root, whose files they may be
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
check.check.main(["--json"], standalone_mode=False)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    found = {finding["topic"]: finding for finding in json.loads(done.stdout)["host"]}
    assert "CAP_NET_RAW" in found["AF_XDP"]["change"]
    assert "without CAP_NET_ADMIN" in found["rights"]["found"]


def test_it_only_reads(tmp_path):
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    code = "import harp.cli.check as c, os; os.getppid(); c.check.main(standalone_mode=False)"
    done = subprocess.run([strace, "-f", "-e", "trace=getppid,bpf,ioctl,openat,setsockopt",
                           "-o", str(trace), sys.executable, "-c", code],
                          capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    calls = trace.read_text().rpartition("getppid(")[2]
    assert " bpf(" not in calls
    written = [line for line in calls.splitlines()
               if "openat(" in line and ("O_WRONLY" in line or "O_RDWR" in line)
               and "/dev/null" not in line and "/dev/tty" not in line]
    assert written == []
