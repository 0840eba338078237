"""``harp check --topology``: this host as a topology file for the simulator.

Cards are those that are up and have an address, with the rate that their driver reports
(/sys/class/net/NAME/speed). GPUs are those that NVIDIA's driver lists, by its names
(/proc/driver/nvidia/gpus). Facts that the host does not know stand as remarks to be replaced: the
number of such hosts, what joins the GPUs, and what is between the hosts.
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from pathlib import Path

from harp.net.nics import has_address, nics

UNKNOWN_MBPS = 10_000
MODELS = re.compile(r"^Model:\s*(?:NVIDIA\s+)?(.+?)\s*$", re.MULTILINE)


def topology_text(root: Path = Path("/")) -> str:
    """Return the text of a topology file of two such hosts under one switch."""
    name = re.sub(r"[^a-z0-9-]", "-", socket.gethostname().lower()).strip("-") or "host"
    numa = len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or 1
    return "\n".join([
        f"# Made of {socket.gethostname()} by `harp check --topology`: complete what has a remark.",
        f"name: {name}",
        "hosts:",
        f"  - name: {name}",
        "    count: 2                  # how many such hosts",
        *_gpu_lines(root),
        f"    cores: {os.cpu_count() or 1}",
        f"    numa_nodes: {numa}",
        "    nics:",
        *_nic_lines(root),
        "fabric: {template: single-switch, latency: 1us}   # what is between the hosts",
        "workload: {model: gpt2, sequence: 1024, batch: 8, framework: ddp}   # or your config.json",
        "scenarios:",
        "  - {name: NCCL over TCP, stack: kernel-tcp}",
        "  - {name: NCCL over HARP, stack: harp}", ""])


def _gpu_lines(root: Path) -> list[str]:
    files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    models = [found[1] for file in files if (found := MODELS.search(file.read_text()))]
    if not models:
        return ["    gpus: {count: 1, model: none, samples_per_s: 1}   # no GPU is seen here",
                "    nvlink: none"]
    (model, count), *others = Counter(models).most_common()
    remark = f"   # and {len(models) - count} of another model" if others else ""
    return [f"    gpus: {{count: {count}, model: {model}}}{remark}",
            "    nvlink: none   # or {rate: 300GB/s, latency: 2us}; see `nvidia-smi topo -m`"]


def _nic_lines(root: Path) -> list[str]:
    cards = [nic.name for nic in nics() if nic.up and has_address(nic.name)]
    return [_nic_line(name, _speed_mbps(root, name)) for name in cards] or [
        "      - {name: eth0, rate: 10Gbps}   # no card with an address is up here"]


def _nic_line(name: str, mbps: int | None) -> str:
    known = mbps or UNKNOWN_MBPS
    rate = f"{known / 1000:g}Gbps" if known >= 1000 else f"{known}Mbps"
    remark = "" if mbps else "   # the driver reports no rate: put it in"
    return f"      - {{name: {name}, rate: {rate}}}{remark}"


def _speed_mbps(root: Path, name: str) -> int | None:
    try:
        speed = int((root / "sys/class/net" / name / "speed").read_text())
    except (OSError, ValueError):
        return None
    return speed if speed > 0 else None
