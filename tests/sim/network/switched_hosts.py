"""Hosts of GPUs on NVSwitches, and what NCCL chooses there."""

from __future__ import annotations

from sim.answer.collective_bench import measure
from tests.support.cluster_files import cluster


def switched(folder, model="H100", **given):
    """Hosts of GPUs on NVSwitches, with links that cost no time but bytes."""
    count = given.setdefault("gpus", 8)
    return cluster(folder, host={
        "gpus": {"count": count, "model": model, "effective": "1TFLOPS"},
        "nvlink": {"rate": "360GB/s", "latency": "0s"}},
        nic={"count": count, "rate": "400Gbps"},
        scenario=given.pop("scenario", {"channels": "auto"}), **given)


def nvidias(built, size=8 << 30):
    return measure(built, "allreduce", [size], scenario=built.topology.scenarios[0],
                   algorithms=["nccl"]).rows[0]
