"""AF_XDP with zero copy, also over links that fail, in the emulated machine: `make test-vm`.

Not named test_*, so that `make test` does not boot machines.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from lab import vm
from lab.c_programs import build, library

if TYPE_CHECKING:
    from pathlib import Path

MISSING = [tool for tool in ("qemu-system-x86_64", "busybox") if not shutil.which(tool)]
pytestmark = pytest.mark.skipif(bool(MISSING) and os.geteuid() != 0,
                                reason=f"{MISSING} are missing: see .ci/setup.sh")

# A function of the script: the receiver in the peer namespace, the sender here once it is ready,
# the receiver's exit code. Both programs get the same options.
BLAST = """
blast() {
    mkfifo ready
    peer xdp_blast receive eth1 --cpu 1 --seconds 1 "$@" >ready & receiver=$!
    { read line; echo "$line"
      xdp_blast send eth0 --cpu 0 --to-mac 02:00:00:00:00:02 --from-ip 10.0.0.1 \
          --to-ip 10.0.0.2 --seconds 3 "$@" & sender=$!
      cat; } <ready
    rm ready
    wait $sender || return
    wait $receiver
}
"""


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The raw blast, in one file: the machine needs no library for it."""
    out = tmp_path_factory.mktemp("programs") / "xdp_blast"
    return [build(out, ["bench/c/xdp_blast.c", "bench/c/raw_xdp.c"], ["-O2", "-static"])]


# Functions of the script: `begin NEAR FAR` starts a stream from these interfaces to those of the
# peer namespace, and `end` lets it end; meanwhile `arrives NIC` waits until more has come to one of
# the peer namespace's (what a socket sends without a copy, the driver does not count).
STREAM = """
begin() {
    for to in 10.0.0.2 10.0.1.2; do ping -c 1 -w 10 $to >ping || exit 1; done
    mkfifo ready
    peer taskset 2 stream receive $2 >ready & receiver=$!
    exec 3<ready
    read word handle <&3
    taskset 1 stream send $1 $handle enough & sender=$!
}
end() {
    touch enough
    cat <&3
    wait $sender || exit 2
    wait $receiver || exit 3
}
received() { peer awk -v nic=$1: '$1 == nic { print $3 }' /proc/net/dev; }
arrives() {
    goal=$(($(received $1) + 5000))
    until [ $(received $1) -ge $goal ]; do
        grep -q "^State:.[^Z]" /proc/$sender/status || exit 4 # it has ended in error
        usleep 10000
    done
}
set_link() {
    ticks=0
    until [ $(cat /sys/class/net/$1/carrier) = $3 ]; do
        [ $((ticks % 1000)) != 0 ] || monitor set_link $1 $2 # again: serial lines may lose a word
        [ $ticks -lt 60000 ] || { echo "the link of $1 does not go $2"; exit 5; }
        usleep 1000; ticks=$((ticks + 1))
    done
}
pull() { set_link $1 off 0; }
plug_in() { set_link $1 on 1; }
"""

FAULTS = {
    "the only link is down": (
        "eth0 eth1", "pull eth0; sleep 1; plug_in eth0; arrives eth1"),
    "one of two, then the other": (
        "eth0,eth2 eth1,eth3", """
        pull eth0; arrives eth3; plug_in eth0; arrives eth1
        pull eth2; arrives eth1; plug_in eth2; arrives eth3
        """),
    "one of two holds packets for 20 ms": (
        "eth0,eth2 eth1,eth3", """
        monitor object_add filter-buffer,id=late,netdev=h0,interval=20000
        arrives eth3; monitor object_del late; arrives eth1
        """),
}


@pytest.fixture(scope="session")
def stream(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("programs") / "stream"
    flags = ["-O2", "-static"]
    return [build(out, ["tests/vm/stream.c", str(library(flags))], flags)]


def reports(output: str) -> list[dict[str, object]]:
    """The lines of JSON in a script's output."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_both_ends_bind_with_zero_copy_and_frames_arrive_unharmed(programs):
    done = vm.run(BLAST + "blast", programs)
    assert done.code == 0, done.output
    (receiver,) = reports(done.output)
    assert receiver["zero_copy"] is True  # the sender demands it of its bind, too
    assert receiver["packets"] > 1000
    assert receiver["bytes"] == receiver["packets"] * 1472


def test_copy_mode_works_on_the_same_nics(programs):
    done = vm.run(BLAST + "blast --copy", programs)
    assert done.code == 0, done.output
    (receiver,) = reports(done.output)
    assert receiver["zero_copy"] is False
    assert receiver["packets"] > 1000


def test_the_kernel_gets_all_that_is_not_for_the_socket(programs):
    """While the socket owns the queue, the host still answers, and afterwards too."""
    done = vm.run("""
        mkfifo ready
        peer xdp_blast receive eth1 --port 4791 >ready & receiver=$!
        read line <ready
        ping -c 2 -w 10 10.0.0.2 || exit 1
        peer nc -l -p 4792 -e echo answered & # TCP
        until peer netstat -lnt | grep -q 4792; do :; done
        nc 10.0.0.2 4792 </dev/null || exit 2
        kill -9 $receiver; wait $receiver
        ping -c 2 -w 10 10.0.0.2 || exit 3
        """, programs)
    assert done.code == 0, done.output
    assert "answered" in done.output


def test_a_gibibyte_streams_through_the_engine_without_a_copy(stream):
    done = vm.run("""
        ping -c 1 -w 10 10.0.0.2 >ping || exit 1 # the neighbours know each other
        mkfifo ready
        peer taskset 2 stream receive eth1 >ready & receiver=$!
        { read word handle
          taskset 1 stream send eth0 $handle & sender=$!
          cat; } <ready
        wait $sender || exit 2
        wait $receiver || exit 3
        """, stream, timeout_s=1500)
    assert done.code == 0, done.output
    both = {end["role"]: end for end in reports(done.output)}
    for end in both.values():
        assert "zero copy" in end["line"]
        assert end["bytes"] == 1 << 30
        # If the neighbour's entry grows stale, the kernel sends one datagram (docs/inside/xdp.md).
        assert end["sent_copied"] <= 4
        assert end["received_copied"] == 0
    assert both["receive"]["received"] > (1 << 30) / 1472


@pytest.mark.parametrize(("nics", "faults"), FAULTS.values(), ids=FAULTS)
def test_faults_of_links_under_a_stream_cost_it_nothing(stream, nics, faults):
    """All that was sent comes, no error is reported, and repaired links are used again."""
    done = vm.run(f"{STREAM}\nbegin {nics}\narrives eth1\n{faults}\nend", stream,
                       timeout_s=900, hubs=2)
    assert done.code == 0, done.output
    both = {end["role"]: end for end in reports(done.output)}
    assert both["send"]["bytes"] == both["receive"]["bytes"] > 0
    for end in both.values():
        assert "zero copy" in end["line"]


@pytest.mark.parametrize(("mtu", "mode"), [
    (8500, "copy mode (zero copy: the kernel wants an MTU of at most 3686)"), (3686, "zero copy")])
def test_frames_pass_although_the_kernel_had_filled_the_ring_for_jumbo_packets(tmp_path, mtu, mode):
    """virtio_net loses what is longer than a page less XDP's room in buffers from before XDP."""
    flags = ["-O2", "-static", "-Icnet"]
    programs = [build(tmp_path / "tcp_blast", ["bench/c/tcp_blast.c"], flags),
                build(tmp_path / "harp_bench", ["bench/c/harp_bench.c",
                                                "bench/c/harp_bench_settings.c",
                                                str(library(["-O2", "-static"]))], flags)]
    done = vm.run("""
        ip link set eth0 mtu 8500; peer ip link set eth1 mtu 8500
        arm() {
            mkfifo ready
            peer $1 receive $2 --cpu 1 --seconds 0.5 >ready & receiver=$!
            { read word handle
              $1 send $3 ${handle:+--handle $handle} --cpu 0 >sent & sender=$!
              cat; } <ready
            rm ready
            wait $receiver || exit 1
            wait $sender
        }
        arm tcp_blast "" "--to 10.0.0.2"
        ip link set eth0 mtu $mtu; peer ip link set eth1 mtu $mtu
        arm harp_bench "--port xdp --stream --thread --interface eth1" \
            "--port xdp --stream --thread --interface eth0"
        """.replace("$mtu", str(mtu)), programs)
    assert done.code == 0, done.output
    assert done.output.count(f"queue 0, {mode}\n") == 2, done.output
    _, by_harp = reports(done.output)
    assert by_harp["bytes"] > 0


# The machine itself

def test_a_program_with_shared_libraries_finds_them():
    done = vm.run("env true && echo from the library", [vm.tool("env", "coreutils")])
    assert (done.code, done.output) == (0, "from the library\n")


def test_the_exit_code_and_the_output_come_back():
    lines: list[str] = []
    done = vm.run("echo one; echo two >&2; exit 7", each_line=lines.append)
    assert (done.code, done.output) == (7, "one\ntwo\n")
    assert lines == ["one", "two"]


def test_a_script_that_does_not_end_is_an_error_in_bounded_time():
    with pytest.raises(vm.MachineError, match=r"stopped after 25 s.*\nbegun\n"):
        vm.run("echo begun; sleep 1000", timeout_s=25)


def test_a_kernel_that_dies_is_an_error_with_its_last_words():
    with pytest.raises(vm.MachineError, match="Kernel panic"):
        vm.run("echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger; sleep 100")
