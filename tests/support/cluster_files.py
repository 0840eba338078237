"""Topology files of small clusters for the simulator's tests, and stacks without any cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from sim.cluster.cluster import Cluster
from sim.schema import load

if TYPE_CHECKING:
    from pathlib import Path

ALPHA_S = 10e-6
RATE_BPS = 100e9

IDEAL = {"base": "rdma", "cost_per_message": "0s", "start_latency": f"{ALPHA_S}s",
         "flow_rate": "1000Tbps", "headers": "0B", "threads": 32, "deviation": 1.0, "launch": "0s"}
"""A stack reduced to a latency: the textbook's alpha and beta."""
FREE = {"base": "horovod", "per_tensor": "0s", "per_rank": "0s", "step_overhead": "0s",
        "overlap": 1.0, "slowdown": 1.0, "jitter": 0, "contention": 0,
        "selection_per_element": "0s", "scatter_per_element": "0s", "cast_per_element": "0s",
        "copy_per_element": "0s", "kernel_delay": 1.0,
        "launch_per_layer": "0s", "launch_per_product": "0s"}
"""A framework that costs nothing."""


def topology(*, hosts: int | list[dict[str, Any]] = 2, gpus: int = 1, rate_bps: float = RATE_BPS,
             nic: dict[str, Any] | None = None, host: dict[str, Any] | None = None,
             scenario: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    """Give a topology as plain data: equal hosts under one switch, with ideal stack and framework.

    ``nic``, ``host`` and ``scenario`` add to the one NIC, host group and scenario; ``top`` to the
    file. ``hosts`` may be a list of groups instead of a number.
    """
    group = {"name": "h", "count": hosts,
             "gpus": {"count": gpus, "model": "any", "effective": "100TFLOPS"},
             "nvlink": {"rate": "100GB/s", "latency": "1us"},
             "pcie": {"rate": "1000TB/s", "latency": "0s"},
             "nics": [{"name": "eth", "rate": f"{rate_bps!r}bps"} | (nic or {})]} | (host or {})
    return {"name": "t", "hosts": hosts if isinstance(hosts, list) else [group],
            "fabric": {"template": "single-switch", "latency": "0s"},
            "stacks": {"ideal": IDEAL}, "frameworks": {"free": FREE},
            "workload": {"model": "vgg16", "batch": 128, "framework": "free"},
            "scenarios": [{"name": "s", "stack": "ideal", "allreduce": "ring", "channels": 1}
                          | (scenario or {})]} | top


def write(folder: Path, data: dict[str, Any], name: str = "t.yaml") -> Path:
    """Write a topology to a file of ``folder``."""
    path = folder / name
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def write_job(folder: Path, topology_data: dict[str, Any], **keys: Any) -> Path:
    """Write a job for ``harp plan`` of all hosts of a topology, and the topology beside it."""
    write(folder, topology_data, "top.yaml")
    (group,) = topology_data["hosts"]
    nics = group["nics"][0].get("count", 1)
    addresses = {f"h-{host}/eth{n}": f"10.9.{n}.{host + 1}"
                 for host in range(group["count"]) for n in range(nics)}
    return write(folder, {"topology": "top.yaml", "addresses": addresses} | keys, "job.yaml")


def cluster(folder: Path, **given: Any) -> Cluster:
    """Build a cluster by the ordinary way: through a file."""
    return Cluster(load(write(folder, topology(**given))))
