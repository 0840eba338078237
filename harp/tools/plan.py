"""``harp plan``: source ports for all flows of a job, so that switches that hash keep them apart.

The fabric is described by a topology file, whose reader is the simulator's (`sim.schema`): what was
simulated is what is deployed.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harp.routing.deployment import Deployment, Ranks, Wanted
    from harp.routing.fabric import Fabric
    from sim.cluster.cluster import Cluster
    from sim.schema.job import Job


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("-o", "--output", metavar="FILE", help="Write the plan here, not to standard output.")
@click.option("--check", metavar="PLAN", type=click.Path(path_type=Path),
              help="Say whether this plan holds for the job as it is now.")
def plan(job: Path, output: str | None, check: Path | None) -> None:
    """Plan the paths of a job's flows over switches that hash ports.

    \b
    harp plan job.yaml -o plan.json
    eval "$(harp env --plan plan.json)"
    """  # noqa: D301  (click's mark)
    import numpy as np

    from harp.routing.deployment import plan_job
    from harp.routing.fabric import UnreachableError
    from harp.routing.plan import PlanError
    from sim.cluster.cluster import Cluster
    from sim.schema.errors import TopologyError
    from sim.schema.job import load_job

    try:
        wanted, topology = load_job(job)
        cluster = Cluster(topology)
        fabric = _real_fabric(cluster, wanted, job)
    except TopologyError as error:
        raise click.UsageError(str(error)) from error
    if check is not None:
        try:
            read_plan(check).verify(fabric)
        except PlanError as error:
            raise click.ClickException(f"{check}: {error}") from error
        click.echo(f"{check} holds: every flow takes the links that it has there")
        return
    ranks = _ranks(cluster, topology.host_names)
    try:
        made = plan_job(fabric, ranks, _wanted(wanted, np.arange(len(ranks.host)).tolist()))
    except (UnreachableError, ValueError) as error:
        raise click.UsageError(f"{job}: {error}") from error
    _write(made, output)
    _say(made)


def read_plan(path: Path) -> Deployment:
    """Read a plan's file; ClickException, one sentence, if it is none."""
    from harp.routing.deployment import Deployment
    from harp.routing.plan import PlanError

    try:
        return Deployment.from_json(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise click.ClickException(f"the plan {path} cannot be read: {reason}") from error
    except PlanError as error:
        raise click.ClickException(f"{path} is no plan: {error}") from error


def _real_fabric(cluster: Cluster, job: Job, path: Path) -> Fabric:
    """The fabric with the NICs' own addresses and the switches' own seeds."""
    import numpy as np

    from sim.schema.errors import TopologyError, unknown

    fabric = cluster.fabric
    addresses = [int(IPv4Address(job.addresses[name])) for name in fabric.endpoints]
    salt = fabric.hash_salt.copy()
    for name, seed in job.seeds.items():
        if name not in fabric.switches:
            raise TopologyError(str(path), unknown("switch", name, fabric.switches,
                                                  ("seeds", name)))
        salt[fabric.switches.index(name)] = seed
    return replace(fabric, endpoint_ip=np.array(addresses, np.uint32), hash_salt=salt)


def _ranks(cluster: Cluster, names: tuple[str, ...]) -> Ranks:
    from harp.routing.deployment import Ranks

    return Ranks(cluster.host, cluster.endpoint, cluster.own_nics, names)


def _wanted(job: Job, ranks: list[int]) -> Wanted:
    from harp.routing.deployment import UdpPorts, Wanted

    if job.flows == "ring":
        pairs = list(zip(ranks, [*ranks[1:], *ranks[:1]], strict=True)) if len(ranks) > 1 else []
    elif job.flows == "alltoall":
        pairs = [(a, b) for a in ranks for b in ranks if a != b]
    else:
        pairs = [(pair.sender, pair.receiver) for pair in job.flows]
    return Wanted(pairs, job.connections, job.paths, job.engines,
                  UdpPorts(job.ports.listen, job.ports.first_source, job.ports.last_source))


def _write(made: Deployment, output: str | None) -> None:
    if output is None:
        click.echo(made.to_json(), nl=False)
        return
    try:
        Path(output).write_text(made.to_json(), "utf-8")
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written: {error.strerror}") from error


def _say(made: Deployment) -> None:
    astray = f"; {made.unrealised} found no port for the path first chosen" \
        if made.unrealised else ""
    click.echo(f"{len(made.flows)} flows of {len(made.ranks)} ranks: the fullest link is at "
               f"{made.max_load:.3g} of its rate, at {made.ecmp_load:.3g} by ECMP, and no routes "
               f"can do better than {made.bound:.3g}{astray}", err=True)
