"""Input files of ``harp plan``: jobs and the files that they name, plans, traffic of others.

A topology file describes the fabric; the simulator's reader (`sim.schema`) reads it, so that what
was simulated is what is deployed. A mistake in a file is one sentence, an exception of click's.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, NamedTuple

import click

from harp.cli.io import InputError, read_text
from harp.nearest import did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from harp.collectives.tuning import Tuning
    from harp.routing.background_load import Background
    from harp.routing.bond import Policy
    from harp.routing.deployment import Deployment
    from harp.routing.discovered import DiscoveredPath, Map
    from harp.routing.fabric import Fabric
    from harp.routing.jobs import Job, Ranks, Wanted
    from sim.cluster.cluster import Cluster
    from sim.schema.job import PlannedJob


class Loaded(NamedTuple):
    """A job with everything that its file names."""

    path: Path
    job: PlannedJob
    cluster: Cluster
    fabric: Fabric
    discovered: Map | None
    bonds: list[Policy | None]
    """Bond policy of each endpoint; None where the NIC has one port or the sender chooses."""


def load_jobs(paths: tuple[Path, ...]) -> list[Loaded]:
    """Read jobs that are planned together; UsageError unless all use one fabric."""
    first, *others = [_load(path) for path in paths]
    for other in others:
        if other.fabric.fingerprint != first.fabric.fingerprint:
            raise click.UsageError(f"{first.path} and {other.path} use different fabrics: links, "
                                   "addresses or seeds differ")
        maps = {made.discovered and made.discovered.fingerprint(first.fabric)
                for made in (first, other)}
        if len(maps) > 1:
            raise click.UsageError(f"{first.path} and {other.path} have different maps: jobs that "
                                   "are planned together need the same")
    return [first, *others]


def _load(path: Path) -> Loaded:
    from sim.cluster.cluster import Cluster
    from sim.schema.input_errors import TopologyError
    from sim.schema.job import load_job

    try:
        job, topology = load_job(path)
        cluster = Cluster(topology)
        fabric = _real_fabric(cluster, job, path)
        return Loaded(path, job, cluster, fabric, _map(job, fabric, path), _bonds(cluster))
    except TopologyError as error:
        raise click.UsageError(str(error)) from error


def _real_fabric(cluster: Cluster, job: PlannedJob, path: Path) -> Fabric:
    """The fabric with the NICs' own addresses and the switches' own seeds."""
    import numpy as np

    fabric = cluster.fabric
    addresses = [int(IPv4Address(job.addresses[name])) for name in fabric.endpoints]
    salt = fabric.hash_salt.copy()
    for name, seed in job.seeds.items():
        _require_switch(fabric, name, path, ("seeds", name))
        salt[fabric.switches.index(name)] = seed
    return replace(fabric, endpoint_ip=np.array(addresses, np.uint32), hash_salt=salt)


def _bonds(cluster: Cluster) -> list[Policy | None]:
    return [nic.bond if nic.ports > 1 and nic.bond != "dynamic" else None
            for group in cluster.topology.hosts for _ in range(group.count)
            for nic in group.nics for _ in range(nic.count)]


def _map(job: PlannedJob, fabric: Fabric, path: Path) -> Map | None:
    """Read the discovered paths, if the job names maps."""
    from harp.routing.discovered import Map

    paths = [one for name in job.maps for one in _read_map(path.parent / name)]
    for address, switch in job.routers.items():
        _require_switch(fabric, switch, path, ("routers", address))
    return Map(paths, job.routers) if job.maps else None


def _read_map(path: Path) -> list[DiscoveredPath]:
    from harp.routing.discovered import from_json
    from harp.routing.path_plan import PlanError

    try:
        return from_json(read_text(path))
    except PlanError as error:
        raise click.UsageError(f"{path}: {error}") from error


def _require_switch(fabric: Fabric, name: str, path: Path, key: tuple[str, str]) -> None:
    from sim.schema.input_errors import TopologyError, unknown

    if name not in fabric.switches:
        raise TopologyError(str(path), unknown("switch", name, fabric.switches, key))


def take_down(loaded: Loaded, names: tuple[str, ...]) -> Loaded:
    """Take down the named links and switches; UsageError for unknown names."""
    if not names:
        return loaded
    known = _links_by_any_name(loaded.fabric)
    for name in names:
        if name not in known:
            raise click.UsageError(f"--without {name}: the fabric has no such link or switch"
                                   + did_you_mean(name, known))
    down = [link for name in names for link in known[name]]
    return loaded._replace(fabric=loaded.fabric.without(down))


def _links_by_any_name(fabric: Fabric) -> dict[str, list[int]]:
    """Index links by ``a->b``, ``a->b#2``, ``a-b`` (both directions) and switch name."""
    known: dict[str, list[int]] = {}
    for link, (src, dst, cable) in enumerate(zip(
            fabric.link_src.tolist(), fabric.link_dst.tolist(), fabric.cable_names, strict=True)):
        near, far, number = fabric.node_name(src), fabric.node_name(dst), cable.partition("#")[2]
        names = {f"{near}->{far}", cable, f"{near}-{far}", f"{far}-{near}"}
        if number:
            names |= {f"{near}-{far}#{number}", f"{far}-{near}#{number}"}
        for name in (*names, *(end for end in (near, far) if end in fabric.switches)):
            known.setdefault(name, []).append(link)
    return known


def planned_job(loaded: Loaded) -> Job:
    """Convert a job for the planner."""
    from harp.routing.jobs import Job

    ranks = _ranks(loaded)
    return Job(ranks, _wanted(loaded.job, len(ranks.host)))


def _ranks(loaded: Loaded) -> Ranks:
    import numpy as np

    from harp.routing.affinity import place_hosts, rank_order
    from harp.routing.jobs import Ranks

    job, cluster = loaded.job, loaded.cluster
    names = cluster.topology.host_names
    hosts = (np.arange(cluster.hosts) if job.hosts is None
             else np.array([names.index(name) for name in job.hosts]))
    if job.order == "near":
        first_nic = np.searchsorted(loaded.fabric.endpoint_host, hosts)
        hosts = hosts[place_hosts(_measured_places(loaded, hosts)) if job.latencies
                      else rank_order(loaded.fabric, first_nic)]
    # A host's ranks follow one another, or NCCL counts it several times.
    own = slice(None) if job.gpus is None else list(job.gpus)
    order = np.concatenate([np.flatnonzero(cluster.host == host)[own] for host in hosts])
    return Ranks(cluster.host[order], cluster.endpoint[order], cluster.own_nics[order], names)


def _measured_places(loaded: Loaded, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cluster hosts by their round trips, and print what was found."""
    import numpy as np

    from harp.routing import rtt_clusters
    from harp.routing.path_plan import PlanError

    path, job, fabric = loaded.path, loaded.job, loaded.fabric
    hosts = [[job.addresses[fabric.endpoints[nic]]
              for nic in np.flatnonzero(fabric.endpoint_host == host)]
             for host in numbers]
    measured = [_read_latencies(path.parent / name) for name in job.latencies]
    try:
        found = rtt_clusters.cluster_hosts(rtt_clusters.matrix(hosts, measured))
    except PlanError as error:
        raise click.UsageError(f"{path}: latencies: {error}") from error
    levels = [len(np.unique(found.place[:, level])) for level in range(found.place.shape[1])]
    click.echo("latencies: " + (f"{', of '.join(map(str, levels))} groups of hosts that are "
                                f"near, silhouette {found.sure:.2f}" if levels else
                                "all hosts are equally near"), err=True)
    return found.place if levels else np.zeros((len(hosts), 1), np.int64)


def _read_latencies(path: Path) -> tuple[str, dict[str, float]]:
    from harp.routing.path_plan import PlanError
    from harp.routing.rtt_clusters import from_json

    try:
        return from_json(read_text(path))
    except PlanError as error:
        raise click.UsageError(f"{path}: {error}") from error


def _wanted(job: PlannedJob, ranks: int) -> Wanted:
    from harp.routing.jobs import PortRange, Wanted

    if job.flows == "ring":
        pairs = [(rank, (rank + 1) % ranks) for rank in range(ranks) if ranks > 1]
    elif job.flows == "alltoall":
        pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    else:
        pairs = [(pair.sender, pair.receiver) for pair in job.flows]
    return Wanted(pairs, job.connections, job.paths, job.engines,
                  PortRange(job.ports.listen, job.ports.first_source, job.ports.last_source),
                  job.protocol)


def load_background(paths: tuple[Path, ...], loaded: Loaded) -> Background | None:
    """Read traffic of others: plans of other jobs, and link rates."""
    from harp.routing.background_load import Background
    from harp.routing.path_plan import PlanError

    found = None
    for path in paths:
        try:
            one = (Background.of_plans(loaded.fabric, [read_plan(path)])
                   if read_text(path).lstrip().startswith("{")
                   else Background.of_rates(loaded.fabric, _read_rates(path, loaded.fabric)))
        except PlanError as error:
            raise click.ClickException(f"{path}: {error}") from error
        found = one if found is None else found + one
    return found


def _read_rates(path: Path, fabric: Fabric) -> dict[str, float]:
    from sim.schema.input_errors import TopologyError
    from sim.schema.job import load_rates

    try:
        rates = load_rates(path)
    except TopologyError as error:
        raise click.UsageError(str(error)) from error
    for name in rates:
        if name not in fabric.links_by_name:
            raise click.UsageError(f"{path}: rates: the fabric has no link {name!r}"
                                   + did_you_mean(name, fabric.links_by_name))
    return rates


def read_plan(path: Path) -> Deployment:
    """Read a plan; ClickException, one sentence, if the file is not one."""
    from harp.routing.deployment import Deployment
    from harp.routing.path_plan import PlanError

    try:
        return Deployment.from_json(read_text(path))
    except PlanError as error:
        raise InputError(f"{path} is not a plan: {error}") from error


def read_tuning(path: Path) -> Tuning:
    """Read a tuning table; UsageError, one sentence, if the file is not one."""
    from harp.collectives.tuning import Tuning, TuningError

    try:
        return Tuning.from_json(read_text(path))
    except TuningError as error:
        raise click.UsageError(f"{path} is not a tuning table: {error}") from error
