"""iperf3's JSON: cost per byte out of CPU time and rate, and bad runs in one sentence."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from sim.schema.parameters import load_stack
from tests.support import json_changes
from tests.support.calibrate_runs import derived, refused, run, save
from tests.support.free_ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path


def document(*, rate_bps: float = 20e9, host: float = 60.0, remote: float = 100.0,
             **test: Any) -> dict[str, Any]:
    """Output of iperf3 3.12: the keys that are read, and a few that are not."""
    return {
        "start": {"version": "iperf 3.12", "connecting_to": {"host": "10.0.0.2", "port": 5201},
                  "test_start": {"protocol": "TCP", "num_streams": 1, "blksize": 131072,
                                 "duration": 10, "reverse": 0, "target_bitrate": 0} | test},
        "intervals": [{"streams": [{"socket": 5, "pmtu": 9000}], "sum": {}}],
        "end": {"sum_sent": {"seconds": 10.0, "bits_per_second": rate_bps * 1.01},
                "sum_received": {"seconds": 10.0, "bits_per_second": rate_bps},
                "cpu_utilization_percent": {"host_total": host, "remote_total": remote,
                                            "host_user": 1.0}}}


def test_the_busier_ends_time_is_the_cost_of_a_byte(tmp_path: Path) -> None:
    found = derived(save(tmp_path, json.dumps(document())), stack="kernel-tcp")
    base = load_stack("kernel-tcp")
    payload = 9000 - (base.headers.value - 38)
    assert found["cost_per_byte"]["value"] == pytest.approx(
        1.0 * 8 / 20e9 - base.cost_per_packet.value / payload, rel=0.01)
    assert "flow_rate" not in found


def test_a_client_that_receives_knows_the_mtu_by_its_control_connection(tmp_path: Path) -> None:
    made = document(reverse=1)
    del made["intervals"][0]["streams"][0]["pmtu"]
    made["start"]["tcp_mss_default"] = 8948
    theirs = derived(save(tmp_path, json.dumps(made)), stack="kernel-tcp")
    assert theirs == derived(save(tmp_path, json.dumps(document())), stack="kernel-tcp")


def test_one_stream_that_leaves_its_core_idle_gives_the_rate_of_a_flow(tmp_path: Path) -> None:
    found = derived(save(tmp_path, json.dumps(document(rate_bps=5e9, host=20.0, remote=30.0))),
                    stack="kernel-tcp")
    assert found["flow_rate"]["value"] == pytest.approx(5e9)
    assert found["cost_per_byte"]["value"] == pytest.approx(0.3 * 8 / 5e9, rel=0.05)


@pytest.mark.parametrize("test", [{"num_streams": 4}, {"target_bitrate": 5e9}])
def test_several_streams_or_a_target_say_nothing_of_a_flow(tmp_path: Path, test: Any) -> None:
    made = document(rate_bps=5e9, host=20.0, remote=30.0, **test)
    assert "flow_rate" not in derived(save(tmp_path, json.dumps(made)), stack="kernel-tcp")


def test_an_older_iperf3_says_of_udp_what_was_sent_and_lost(tmp_path: Path) -> None:
    made = document(protocol="UDP", blksize=1448)
    older = json_changes.changed(made, "end", "sum", value={
        "seconds": 10.0, "bits_per_second": 25e9, "jitter_ms": 0.01, "lost_percent": 20.0})
    del older["end"]["sum_received"], older["end"]["sum_sent"]
    assert derived(save(tmp_path, json.dumps(older)), stack="kernel-tcp") == derived(
        save(tmp_path, json.dumps(made)), stack="kernel-tcp")


def test_addresses_go_nowhere(tmp_path: Path) -> None:
    output = tmp_path / "out.yaml"
    done = run("--stack", "kernel-tcp", "--from", save(tmp_path, json.dumps(document())),
               "-o", output)
    assert done.exit_code == 0, done.output
    assert "10.0.0.2" not in done.output + output.read_text()


def changed(*path: str, value: Any) -> dict[str, Any]:
    return json_changes.changed(document(), *path, value=value)


@pytest.mark.parametrize(("made", "says"), [
    (changed("error", value="unable to connect to server"), "iperf3 failed: 'unable to connect"),
    (changed("end", "sum_received", value=None), "end.sum_received: is missing"),
    (json_changes.changed(changed("end", "sum_received", value=None), "end", "sum", value={
        "seconds": 10.0, "bits_per_second": 1e9}), "end.sum_received: is missing"),
    (changed("end", "sum_received", "seconds", value=0.1), "for 1 s or more"),
    (changed("end", "sum_received", "bits_per_second", value=0), "bytes that arrive"),
    (changed("start", "test_start", "protocol", value="SCTP"), "start.test_start.protocol"),
    (changed("start", "test_start", "bidir", value=1), "in both directions"),
    (changed("end", "sum_received_bidir_reverse", value={"seconds": 1}), "in both directions"),
    (document(host=0, remote=0, target_bitrate=1e9), "it shows no CPU time"),
    ({"what": "else"}, "the JSON of nccl-tests or iperf3")])
def test_a_run_that_says_nothing_is_refused_in_one_sentence(tmp_path: Path, made: dict[str, Any],
                                                            says: str) -> None:
    path = save(tmp_path, json.dumps(made), "bad.json")
    assert says in refused(run("--stack", "kernel-tcp", "--from", path))


needs_iperf3 = pytest.mark.skipif(shutil.which("iperf3") is None, reason="needs iperf3")


def made_by_iperf3(folder: Path, *options: str) -> Path:
    """The JSON of a second over loopback."""
    at = ["127.0.0.1", "-p", str(free_ports(1, socket.SOCK_STREAM)[0])]
    with subprocess.Popen(["iperf3", "-s", "-1", "--forceflush", "-B", *at],
                          stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        while "listening" not in server.stdout.readline():
            assert server.poll() is None
        client = subprocess.run(["iperf3", "-t", "1", "-J", *options, "-c", *at],
                                capture_output=True, text=True, check=True, timeout=60)
        server.communicate(timeout=60)
    return save(folder, client.stdout)


@needs_iperf3
@pytest.mark.parametrize("options", [
    (), ("-P", "2"), ("-P", "2", "-R"), ("-u", "-b", "100M"), ("-u", "-b", "100M", "-R")])
def test_a_run_of_the_installed_iperf3_is_read(tmp_path: Path, options: tuple[str, ...]) -> None:
    found = derived(made_by_iperf3(tmp_path, *options), stack="kernel-tcp")
    assert 0 < found["cost_per_byte"]["value"] < 1e-6


@needs_iperf3
def test_a_run_in_both_directions_is_refused(tmp_path: Path) -> None:
    done = run("--stack", "kernel-tcp", "--from", made_by_iperf3(tmp_path, "--bidir"))
    assert "a run in both directions" in refused(done)
