"""Files for launchers and NCCL that go with a plan (``harp plan --files``).

Launchers decide the order of ranks, and NCCL follows it. So each launcher gets its own file, all
made from one plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harp.routing.nccl_files import Net, ring_graph, with_nets
from sim.cluster.device_places import place_devices
from sim.schema.nccl_defaults import channel_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from harp.routing.deployment import Deployment
    from sim.cluster.cluster import Cluster
    from sim.schema.hosts import HostGroup
    from sim.schema.job import PlannedJob

ENV = "nccl.env"


def plan_files(made: Deployment, job: PlannedJob, cluster: Cluster,
               dump: str | None = None) -> dict[str, str]:
    """Give each file's text by name; ``dump`` is a topology that NCCL wrote on a host."""
    files = {
        "hostfile.openmpi": made.hostfile("openmpi"),
        "rankfile.openmpi": rankfile(made, job.gpus, {
            name: group for group in cluster.topology.hosts for name in group.names}),
        "hostfile.mpich": made.hostfile("mpich"),
        "torchrun.txt": made.hostfile("torchrun"),
        "ranks.kubernetes.yaml": config_map(made),
    }
    group = cluster.topology.hosts[0]
    settings = dict(made.settings)
    if len(cluster.topology.hosts) == 1:
        settings["HARP_SPEED"] = str(_mbps(group))
        if job.gpus is None:
            files["graph.xml"] = _graph(cluster, group)
    if dump is not None:
        files["topology.xml"] = with_nets(dump, dict(_nets(job, group)))
    files[ENV] = env_file(settings, files)
    return files


def rankfile(made: Deployment, gpus: Sequence[int] | None, groups: Mapping[str, HostGroup]) -> str:
    """Give the rankfile of Open MPI's mpirun: the host of each rank, and its share of the cores.

    If the job uses only some GPUs of a host, a rank gets its GPU's share. Format:
    docs.open-mpi.org, "Rankfiles"; a slot is a core to bind to.
    """
    of_host: dict[str, list[int]] = {}
    for rank in made.ranks:
        of_host.setdefault(rank.host, []).append(rank.rank)
    lines = []
    for rank in made.ranks:
        own, group = of_host[rank.host], groups[rank.host]
        place = own.index(rank.rank)
        place, many = (place, len(own)) if gpus is None else (gpus[place], group.gpus.count)
        first, end = (group.cores * share // many for share in (place, place + 1))
        slot = f"{first}-{end - 1}" if end - first > 1 else f"{min(first, group.cores - 1)}"
        lines.append(f"rank {rank.rank}={rank.host} slot={slot}\n")
    return "".join(lines)


def config_map(made: Deployment) -> str:
    """Give a ConfigMap of each node's --node-rank, for pods that know their spec.nodeName.

    Annotations of nodes would be simpler, but a pod cannot read those of its node.
    """
    nodes = list(dict.fromkeys(rank.host for rank in made.ranks))
    lines = "".join(f'  {host}: "{number}"\n' for number, host in enumerate(nodes))
    return ("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: harp-node-ranks\n"
            f'  annotations:\n    harp/fabric: "{made.fabric}"\n    harp/ranks: '
            f'"{len(made.ranks)}"\ndata:\n{lines}')


def env_file(settings: dict[str, str], files: dict[str, str]) -> str:
    """Give lines NAME=value, for mpirun -x, docker --env-file and systemd's EnvironmentFile."""
    names = {"topology.xml": "NCCL_TOPO_FILE", "graph.xml": "# NCCL_GRAPH_FILE"}
    settings = settings | {name: f"/etc/harp/{file}" for file, name in names.items()
                           if file in files}
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _mbps(group: HostGroup) -> int:
    return round(min(nic.rate for nic in group.nics) / 1e6)


def _nets(job: PlannedJob, group: HostGroup) -> Iterator[tuple[str, Net]]:
    """Speed and latency that NCCL is given for each NIC of a host, by name."""
    latency_us = None if job.latency is None else job.latency * 1e6
    for nic in group.nics:
        for number in range(nic.count):
            yield f"{nic.name}{number}", Net(round(nic.rate * nic.ports / 1e6), latency_us)


def _graph(cluster: Cluster, group: HostGroup) -> str:
    """Rings of a host: channels use its NICs in turn, and enter at a GPU near the NIC."""
    nics, gpus = len(group.nic_names), group.gpus.count
    channels = channel_count(cluster.topology, cluster.topology.scenarios[0])
    near = place_devices(group).nic.tolist()
    rings = []
    for channel in range(channels):
        nic = channel % nics
        first = near.index(nic) if nic in near else 0
        rings.append((nic, [(first + step) % gpus for step in range(gpus)]))
    share = -(-channels // nics)
    return ring_graph(rings, gigabytes_per_s=_mbps(group) / 8e3 / share,
                      nvlink=group.nvlink is not None)
