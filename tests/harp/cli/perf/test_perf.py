"""``harp perf``: within a host and between two, on each port, and how it ends."""

import json
import re
import signal
import socket
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from harp.cli.perf import parse_sizes, perf
from lab.namespace import why_unusable
from lab.veth import veth_pair
from tests.harp.cli.perf.measured import PERF, QUICK, rows, run
from tests.support import PATIENCE_S
from tests.support.levels import long_except


def check_rows(found, sizes):
    assert [row["size"] for row in found] == sizes
    for row in found:
        assert row["messages"] >= 4
        assert 0 < row["p50_us"] <= row["p99_us"]
        assert row["algbw_gbytes"] > 0
        assert row["cpu_ns_per_byte"] > 0
        assert row["frames"] > 0


@pytest.mark.parametrize("options", long_except([
    [], ["--port", "mem"], ["--zerocopy"], ["--engines", "2", "--paths", "2"],
    ["--cpu", "0", "--port", "mem"], ["--faults", "drop=5%,seed=1"]],
    [], ["--engines", "2", "--paths", "2"]))
def test_both_ends_on_this_host(options):
    found = rows(run("--local", "--json", *QUICK, *options))
    check_rows(found, [8, 65536])
    if "--faults" in options:
        assert sum(row["again"] for row in found) > 0


@pytest.mark.parametrize(("faults", "mtu", "least", "most"), [
    ("drop=5%,seed=1", "1500", 0.03, 0.08),
    ("reorder=20%,reorder_delay=2ms,duplicate=2%,seed=1", "0", 0, 0.08)])
def test_lost_is_what_did_not_arrive(faults, mtu, least, most):
    row, = rows(run("--local", "--json", "--seconds", "0.3", "--sizes", "1MiB", "--window", "2",
                    "--mtu", mtu, "--faults", faults))
    assert row["again"] > 0
    assert least <= row["lost"] / row["frames"] <= most


def test_the_table():
    done = run("--local", "--port", "mem", "--seconds", "0.01", "--sizes", "4KiB")
    assert done.returncode == 0, done.stderr
    *lines, size, units, row = done.stdout.splitlines()
    assert all(re.match(r"# (here|there): (memory|mem): ", line) for line in lines)
    assert size.split() == ["size", "messages", "time", "algbw", "p50", "p99", "CPU", "lost"]
    assert units.split() == ["bytes", "us", "GB/s", "us", "us", "ns/B", "packets"]
    assert row.split()[0] == "4096"


def check_tcp(found):
    for row in found:
        assert row["tcp"]["messages"] >= 4
        assert 0 < row["tcp"]["p50_us"] <= row["tcp"]["p99_us"]
        assert row["tcp"]["algbw_gbytes"] > 0
        assert row["tcp"]["cpu_ns_per_byte"] > 0


def test_kernel_tcp_stands_beside():
    found = rows(run("--local", "--json", "--tcp", "2", "--seconds", "0.01",
                     "--sizes", "1:1MiB:1024"))
    check_rows(found, [1, 1024, 1 << 20])
    check_tcp(found)
    assert all(row["tcp"] is None for row in rows(run("--local", "--json", *QUICK)))


def test_the_table_with_kernel_tcp():
    done = run("--local", "--port", "mem", "--seconds", "0.01", "--sizes", "4KiB", "--tcp", "1")
    assert done.returncode == 0, done.stderr
    *_, size, units, row, verdict = done.stdout.splitlines()
    assert size.split()[-5:] == ["kernel", "TCP", "p50", "p99", "CPU"]
    assert units.split()[-4:] == ["GB/s", "us", "us", "ns/B"]
    assert len({line.index("|") for line in (size, units, row)}) == 1
    assert re.fullmatch(r"# HARP over kernel TCP: \d+\.\d\d of the rate at 4096 bytes, "
                        r"\d+\.\d\d of the delay at 4096", verdict)


def test_messages_that_need_more_frames_than_there_are_are_left_out():
    done = run("--local", "--zerocopy", "--mtu", "1500", "--seconds", "0.001",
               "--sizes", "4KiB:16MiB:4096")
    assert done.returncode == 0, done.stderr
    assert "left out" in done.stdout
    assert done.stdout.splitlines()[-1].split()[0] == "4096"


def serving(space, *options):
    server = space.start(*PERF, "--serve", "--once", *options, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    return server, server.stdout.readline()


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
@pytest.mark.parametrize(("port", "address"), long_except([
    ("udp", "ipv4"), ("udp", "ipv6"), ("xdp", "ipv4"), ("xdp", "ipv6"), ("mem", "ipv4")],
    ("udp", "ipv6"), ("xdp", "ipv4")))
def test_two_namespaces(port, address):
    with veth_pair() as (a, b):
        interface = ["--interface", b.device] if port == "xdp" else []
        server, said = serving(b.space, "--control", "0", *interface)
        control = re.search(r"TCP port (\d+)", said)[1]
        interface = ["--interface", a.device] if port == "xdp" else []
        found = json.loads(a.space.run(
            *PERF, getattr(b, address), "--control", control, "--port", port, "--json", *QUICK,
            "--tcp", "2", *interface, timeout_s=120))
        check_rows(found["rows"], [8, 65536])
        check_tcp(found["rows"])
        for end, device in (("here", a.device), ("there", b.device)):
            what = "rings" if port == "mem" else device
            assert any(f"{port}: {what}" in line for line in found[end])
        assert server.wait(30) == 0
        assert server.stderr.read() == ""


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_a_handle_instead_of_a_control_connection():
    with veth_pair() as (a, b):
        server, said = serving(b.space, "--no-control", "--address", b.ipv4)
        handle = said.removeprefix("handle: ").strip()
        found = json.loads(a.space.run(*PERF, "--handle", handle, "--address", a.ipv4, "--json",
                                       *QUICK, timeout_s=120))
        check_rows(found["rows"], [8, 65536])
        assert server.wait(30) == 0


def test_a_server_with_an_address_of_its_own_listens_there_alone():
    with subprocess.Popen([*PERF, "--serve", "--control", "0", "--address", "127.0.0.1"],
                          stdout=subprocess.PIPE, text=True) as server:
        try:
            control = re.search(r"TCP port (\d+)", server.stdout.readline())[1]
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", int(control)))
            check_rows(rows(run("127.0.0.1", "--control", control, "--json", *QUICK)), [8, 65536])
            taken = run("--serve", "--control", control, "--address", "127.0.0.1")
            assert taken.returncode == 1
            assert taken.stderr == (f"error: cannot listen on TCP port {control} of 127.0.0.1: "
                                    "Address already in use; choose another by --control\n")
        finally:
            server.send_signal(signal.SIGINT)


def test_a_server_that_cannot_do_what_is_asked_says_so():
    with subprocess.Popen([*PERF, "--serve", "--control", "0"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as server:
        try:
            control = re.search(r"TCP port (\d+)", server.stdout.readline())[1]
            done = run("127.0.0.1", "--control", control, "--port", "xdp", *QUICK)
            assert done.returncode == 1
            assert re.match(r"error: .*\n\Z", done.stderr)
            done = run("127.0.0.1", "--control", control, "--json", *QUICK)
            check_rows(rows(done), [8, 65536])  # it goes on serving
        finally:
            server.send_signal(signal.SIGINT)
            _, error = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 130
    assert "Traceback" not in error


def test_a_cpu_that_is_not_there():
    done = run("--local", "--cpu", "10000", *QUICK)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "can run on CPU 10000" in done.stderr


def test_a_client_that_asks_for_nonsense_gets_an_error_and_the_server_goes_on():
    with subprocess.Popen([*PERF, "--serve", "--control", "0", "--port", "mem"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            control = int(re.search(r"TCP port (\d+)", server.stdout.readline())[1])
            for nonsense in (b"GET / HTTP/1.1\r\n", b"{}\n", b"[1]\n", b"", b'{"harp_perf": 1}\n'):
                with socket.create_connection(("127.0.0.1", control)) as client:
                    client.sendall(nonsense)
                    client.shutdown(socket.SHUT_WR)
                    client.makefile("rb").read()
            done = run("127.0.0.1", "--control", str(control), "--port", "mem", "--json", *QUICK)
            check_rows(rows(done), [8, 65536])
        finally:
            server.send_signal(signal.SIGINT)
            _, error = server.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in error


def test_nobody_serves():
    done = run("127.0.0.1", "--control", "1", *QUICK)
    assert done.returncode == 1
    assert re.match(r"error: no server at 127\.0\.0\.1, TCP port 1: .*harp perf --serve.*\n\Z",
                    done.stderr)


@pytest.mark.parametrize(("options", "sentence"), [
    (["--local", "host"], "name a HOST, or"),
    (["--serve", "--html", "p.html"], "--html is for the end that measures"),
    (["--local", "--html", "p.txt"], "the name must end in one of"),
    (["--local", "--no-control"], "--no-control needs --serve"),
    (["--handle", "zz"], "--handle"),
    (["--handle", "00"], "a handle has 104 bytes"),
    (["--local", "--sizes", "many"], "'many' is not a size"),
    (["--local", "--engines", "0"], "--engines"),
    (["--local", "--tcp", "0"], "--tcp"),
    (["--serve", "--tcp", "1"], "--tcp needs a HOST or --local"),
    (["--local", "--faults", "banana"], 'Error: "banana" has no value; faults are written as'),
    (["--local", "--interface", "nope"], "Error: there is no interface nope here"),
    (["--local", "--mtu", "5"], "Error: the MTU of port udp leaves 0 bytes to a datagram"),
    (["--local", "--address", "192.0.2.7"], "Error: this host has no address 192.0.2.7"),
    (["--local", "--port", "xdp"], "Error: the xdp port needs an interface"),
    (["--serve", "--address", "banana"], "'banana' is not an IP address, like 10.0.0.1"),
    (["--serve", "--address", "192.0.2.7"], "--address: this host has no address 192.0.2.7"),
    (["--local", "--tcp", "1", "--sizes", "0"], "TCP has no empty messages"),
])
def test_wrong_use(options, sentence):
    result = CliRunner().invoke(perf, options)
    assert result.exit_code == 2
    assert sentence in result.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_interrupted_and_leaves_nothing(number):
    with subprocess.Popen([*PERF, "--local", "--seconds", "60", "--sizes", "64"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if "GB/s" in line:
                break  # it measures
        process.send_signal(number)
        _, error = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, error.strip()) == (130, "")
    assert list(Path("/dev/shm").glob(f"harp-*-{process.pid}-*")) == []


@pytest.mark.parametrize(("text", "sizes"), [
    ("8", [8]), ("64KiB", [65536]), ("8:64:8", [8, 64]), ("8:100:8", [8, 64, 100]),
    ("1MiB:2MiB:2", [1 << 20, 2 << 20]), ("8:8:2", [8])])
def test_sizes(text, sizes):
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "8:64", "64:8:2", "8:64:1", "0:8:2", "8:2GiB:2", "-1", "1kB"])
def test_wrong_sizes(text):
    with pytest.raises(click.UsageError, match="--sizes"):
        parse_sizes(text)
