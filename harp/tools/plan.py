"""``harp plan``: source ports for all flows of a job, so that switches that hash keep them apart.

The fabric is described by a topology file, whose reader is the simulator's (`sim.schema`): what was
simulated is what is deployed.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from harp.routing.deployment import LAUNCHERS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from harp.collectives.tuning import Tuning
    from harp.routing.bond import Policy
    from harp.routing.deployment import Deployment, Ranks, Wanted
    from harp.routing.fabric import Fabric
    from harp.routing.learnt import Map, Way
    from sim.cluster.cluster import Cluster
    from sim.schema.job import PlannedJob


class _Loaded(NamedTuple):
    """A job, with all that its file names."""

    job: PlannedJob
    cluster: Cluster
    fabric: Fabric
    learnt: Map | None
    bonds: list[Policy | None]
    """How the kernel of each endpoint chooses a port of its NIC; None where there is no choice."""


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("-o", "--output", metavar="FILE", help="Write the plan here, not to standard output.")
@click.option("--hostfile", metavar="FILE", help="Write the hosts in the order of their ranks.")
@click.option("--launcher", type=click.Choice(list(LAUNCHERS)), default="openmpi",
              show_default=True, help="Who reads it; of torchrun the options on each host.")
@click.option("--files", metavar="FOLDER", type=click.Path(path_type=Path),
              help="Write what launchers and NCCL read: hostfiles, rankfile, node ranks, "
                   "graph and environment.")
@click.option("--topo-dump", metavar="FILE", type=click.Path(path_type=Path),
              help="What NCCL_TOPO_DUMP_FILE wrote on such a host; --files then has a topology "
                   "with the NICs' speeds.")
@click.option("--check", metavar="PLAN", type=click.Path(path_type=Path),
              help="Say whether this plan holds for the job as it is now.")
def plan(job: Path, *, output: str | None, hostfile: str | None, launcher: str,
         files: Path | None, topo_dump: Path | None, check: Path | None) -> None:
    """Plan the paths of a job's flows over switches that hash ports.

    \b
    harp plan job.yaml -o plan.json
    eval "$(harp env --plan plan.json)"
    """  # noqa: D301  (click's mark)
    from harp.routing.deployment import plan_job

    if topo_dump is not None and files is None:
        raise click.UsageError("--topo-dump has no meaning without --files")
    loaded = _load(job)
    if check is not None:
        _check(check, loaded)
        return
    ranks = _ranks(loaded, job)
    wanted = _wanted(loaded.job, len(ranks.host))
    try:
        made = plan_job(loaded.fabric, ranks, wanted, loaded.learnt, loaded.bonds)
    except ValueError as error:
        raise click.UsageError(f"{job}: {error}") from error
    if loaded.job.tuning is not None:
        made = replace(made, tuning=_read_tuning(job.parent / loaded.job.tuning))
    if files is not None:
        _write_files(files, made, loaded, topo_dump)
    if output is None:
        click.echo(made.to_json(), nl=False)
    else:
        _write(made.to_json(), output)
    if hostfile is not None:
        _write(made.hostfile(launcher), hostfile)
    between = sum(int(ranks.host[a] != ranks.host[b]) for a, b in wanted.pairs)
    _say(made, between * wanted.connections * wanted.paths - len(made.flows))


def read_plan(path: Path) -> Deployment:
    """Read a plan's file; ClickException, one sentence, if it is none."""
    from harp.routing.deployment import Deployment
    from harp.routing.plan import PlanError

    try:
        return Deployment.from_json(_read_text(path))
    except PlanError as error:
        raise click.ClickException(f"{path} is no plan: {error}") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise click.ClickException(f"{path} cannot be read: {reason}") from error


def _load(path: Path) -> _Loaded:
    from sim.cluster.cluster import Cluster
    from sim.schema.errors import TopologyError
    from sim.schema.job import load_job

    try:
        job, topology = load_job(path)
        cluster = Cluster(topology)
        fabric = _real_fabric(cluster, job, path)
        return _Loaded(job, cluster, fabric, _map(job, fabric, path), _bonds(cluster))
    except TopologyError as error:
        raise click.UsageError(str(error)) from error


def _bonds(cluster: Cluster) -> list[Policy | None]:
    return [nic.bond if nic.ports > 1 and nic.bond != "dynamic" else None
            for group in cluster.topology.hosts for _ in range(group.count)
            for nic in group.nics for _ in range(nic.count)]


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


def _map(job: PlannedJob, fabric: Fabric, path: Path) -> Map | None:
    """What was learnt of the network, if the job names maps."""
    from harp.routing.learnt import Map

    ways = [way for name in job.maps for way in _read_map(path.parent / name)]
    for address, switch in job.routers.items():
        _require_switch(fabric, switch, path, ("routers", address))
    return Map(ways, job.routers) if job.maps else None


def _read_map(path: Path) -> list[Way]:
    from harp.routing.learnt import from_json
    from harp.routing.plan import PlanError

    try:
        return from_json(_read_text(path))
    except PlanError as error:
        raise click.UsageError(f"{path}: {error}") from error


def _require_switch(fabric: Fabric, name: str, path: Path, key: tuple[str, str]) -> None:
    from sim.schema.errors import TopologyError, unknown

    if name not in fabric.switches:
        raise TopologyError(str(path), unknown("switch", name, fabric.switches, key))


def _check(plan: Path, loaded: _Loaded) -> None:
    from harp.routing.plan import PlanError

    made = read_plan(plan)
    try:
        if loaded.learnt is None:
            made.verify(loaded.fabric, loaded.bonds)
        elif made.fabric != loaded.learnt.fingerprint(loaded.fabric):
            raise PlanError("links, addresses or maps are others than it was made for: make it "
                            "anew with harp plan")
    except PlanError as error:
        raise click.ClickException(f"{plan}: {error}") from error
    click.echo(f"{plan} holds: every flow takes the links that it has there")


def _measured_places(loaded: _Loaded, path: Path) -> NDArray[np.int64]:
    """Where hosts sit by the round trips between them, and a sentence of what was found."""
    import numpy as np

    from harp.routing import nearness
    from harp.routing.plan import PlanError

    job, fabric = loaded.job, loaded.fabric
    hosts = [[job.addresses[fabric.endpoints[nic]]
              for nic in np.flatnonzero(fabric.endpoint_host == host)]
             for host in range(loaded.cluster.hosts)]
    measured = [_read_latencies(path.parent / name) for name in job.latencies]
    try:
        found = nearness.find_places(nearness.matrix(hosts, measured))
    except PlanError as error:
        raise click.UsageError(f"{path}: latencies: {error}") from error
    levels = [len(np.unique(found.place[:, level])) for level in range(found.place.shape[1])]
    click.echo("latencies: " + (f"{', of '.join(map(str, levels))} groups of hosts near one "
                                f"another, silhouette {found.sure:.2f}" if levels else
                                "all hosts are as near to one another"), err=True)
    return found.place if levels else np.zeros((len(hosts), 1), np.int64)


def _read_latencies(path: Path) -> tuple[str, dict[str, float]]:
    from harp.routing.nearness import from_json
    from harp.routing.plan import PlanError

    try:
        return from_json(_read_text(path))
    except PlanError as error:
        raise click.UsageError(f"{path}: {error}") from error


def _ranks(loaded: _Loaded, job: Path) -> Ranks:
    import numpy as np

    from harp.routing.affinity import place_hosts, rank_order
    from harp.routing.deployment import Ranks

    cluster = loaded.cluster
    order = np.arange(cluster.gpus)
    if loaded.job.order == "near":
        # A host's ranks follow one another, or NCCL counts it several times.
        first_nic = np.searchsorted(loaded.fabric.endpoint_host, np.arange(cluster.hosts))
        hosts = (place_hosts(_measured_places(loaded, job)) if loaded.job.latencies
                 else rank_order(loaded.fabric, first_nic))
        order = np.argsort(np.argsort(hosts)[cluster.host], kind="stable")
    return Ranks(cluster.host[order], cluster.endpoint[order], cluster.own_nics[order],
                 cluster.topology.host_names)


def _wanted(job: PlannedJob, ranks: int) -> Wanted:
    from harp.routing.deployment import UdpPorts, Wanted

    if job.flows == "ring":
        pairs = [(rank, (rank + 1) % ranks) for rank in range(ranks) if ranks > 1]
    elif job.flows == "alltoall":
        pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    else:
        pairs = [(pair.sender, pair.receiver) for pair in job.flows]
    return Wanted(pairs, job.connections, job.paths, job.engines,
                  UdpPorts(job.ports.listen, job.ports.first_source, job.ports.last_source))


def _read_tuning(path: Path) -> Tuning:
    from harp.collectives.tuning import Tuning, TuningError

    try:
        return Tuning.from_json(_read_text(path))
    except TuningError as error:
        raise click.UsageError(f"{path} is no tuning table: {error}") from error


def _write_files(folder: Path, made: Deployment, loaded: _Loaded, dump: Path | None) -> None:
    from harp.routing.nccl_files import NcclFileError
    from harp.tools.plan_files import plan_files

    try:
        texts = plan_files(made, loaded.job, loaded.cluster,
                           None if dump is None else _read_text(dump))
    except NcclFileError as error:
        raise click.UsageError(f"{dump}: {error}") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"{folder} cannot be made: {error.strerror}") from error
    for name, text in texts.items():
        _write(text, str(folder / name))
    click.echo(f"{folder}: {', '.join(texts)}", err=True)


def _write(text: str, output: str) -> None:
    try:
        Path(output).write_text(text, "utf-8")
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written: {error.strerror}") from error


def _say(made: Deployment, unknown: int) -> None:
    more = ""
    if made.unrealised:
        more += f"; {made.unrealised} found no port of their own for the path first chosen"
    if unknown:
        more += f"; {unknown} more have no way in the maps and will be hashed"
    click.echo(f"{len(made.flows)} flows of {len(made.ranks)} ranks: the fullest link is at "
               f"{made.max_load:.3g} of its rate, at {made.ecmp_load:.3g} by ECMP, and no routes "
               f"can do better than {made.bound:.3g}{more}", err=True)
