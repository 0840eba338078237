"""Scenes under the NCCL client: HARP's plugin, and kernel TCP as NCCL uses it.

The client of lab/nccl_client sends messages of 512 KiB, 8 of them under way, as NCCL's
progress thread does. HARP's plugin fuses both NICs (HARP_RAILS). The TCP reference cuts each
message over four sockets: between the hosts' addresses on loopback, which the kernel hashes over
both ports, or between the addresses of one NIC, as NCCL does.

Goodput is what the receiver's NICs got, less the headers of full packets, so it counts what came
twice.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from bench.tccl.goodput import Run, Sample, bins_of, lateness
from bench.tccl.scenes import PORT
from bench.tccl.two_ports import HOST_ADDRESSES, RATE_BPS, Lab
from lab import nccl_pair
from lab.dual_tor import MTU, PORTS
from lab.impairments import ETHERNET_BYTES

if TYPE_CHECKING:
    from bench.tccl.scenes import Scene

RELEASE = ("-O2",)
OPTIONS = ("--size", str(512 << 10), "--limit", "60")
HARP_PAYLOAD, TCP_PAYLOAD = 1408, MTU - 52
"""Of a full packet."""
SOCKETS = "4"
BEGUN_BYTES = 1 << 20
PATIENCE_S = 60.0
TICK_S = 1e-3
"""A real client is watched in real time."""
_RECEIVED = 0  # column of /proc/net/dev


def _settings(lab: Lab, stack: str, number: int) -> dict[str, str]:
    if stack != "harp":
        name = "lo" if stack == "tcp" else lab.cables[number][PORT].host.device
        return {"TCP_REF_IFNAME": name, "TCP_REF_SOCKETS": SOCKETS}
    rails = ",".join(lab.cables[number][port].host.device for port in PORTS)
    return {"HARP_PORT": "udp", "HARP_PROGRESS": "threads", "HARP_RAILS": rails}


def _received(file: TextIO) -> int:
    """Bytes that all NICs of a host have received."""
    file.seek(0)
    return sum(int(line.partition(":")[2].split()[_RECEIVED]) for line in file
               if ":" in line and not line.strip().startswith("lo:"))


def run_nccl(scene: Scene, stack: str) -> Run:
    """Play a scene with the client over ``harp``, ``tcp`` or ``tcp-nic``."""
    lab = Lab()
    try:
        for host in lab.hosts if stack == "tcp" else ():  # the address that the plugin is to find
            host.run("ip", "address", "del", "127.0.0.1/8", "dev", "lo")
        plugin = nccl_pair.harp(RELEASE) if stack == "harp" else nccl_pair.tcp_ref(RELEASE)
        settings = (_settings(lab, stack, 1), _settings(lab, stack, 0))
        with nccl_pair.Pair(nccl_pair.client(RELEASE), plugin, ["speed"],
                            spaces=(lab.hosts[1], lab.hosts[0]), settings=settings,
                            options=("--seconds", str(scene.end_s + 1), *OPTIONS)) as pair:
            return _watch(lab, scene, pair, HARP_PAYLOAD if stack == "harp" else TCP_PAYLOAD)
    finally:
        lab.close()


def _watch(lab: Lab, scene: Scene, pair: nccl_pair.Pair, payload: int) -> Run:
    with lab.hosts[1].entered():
        counters = Path("/proc/thread-self/net/dev").open()  # noqa: SIM115  (closed below)
    samples: list[Sample] = []
    moments, done_s = deque(scene.moments), list[float]()
    with counters:
        began_s = _await_traffic(counters)
        while (now_s := time.monotonic() - began_s) < scene.end_s:
            if moments and now_s >= moments[0].at_s:
                done_s.append(now_s)
                moments.popleft().action(lab)
            received = _received(counters) * payload // (MTU + ETHERNET_BYTES)
            samples.append(Sample(now_s, received, 0))
            time.sleep(TICK_S)
    ended = pair.end(PATIENCE_S)
    error = "" if ended.good else f"the client failed: {str(ended)[:300]}"
    capacity_bps = len(PORTS) * RATE_BPS * payload / (MTU + ETHERNET_BYTES)
    return Run(bins_of(samples, scene.end_s), [], capacity_bps, 0, error, done_s,
               lateness(samples))


def _await_traffic(counters: TextIO) -> float:
    until_s = time.monotonic() + PATIENCE_S
    before = _received(counters)
    while _received(counters) < before + BEGUN_BYTES:
        if time.monotonic() > until_s:
            raise TimeoutError(f"no traffic between {' and '.join(HOST_ADDRESSES)}")
        time.sleep(TICK_S)
    return time.monotonic()
