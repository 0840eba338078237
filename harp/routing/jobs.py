"""Plans for jobs of real ranks: the ports, of UDP or TCP, and links of all flows.

`plan_jobs` plans the flows of all jobs of a fabric at once: they share one objective, and each job
gets a `Deployment` of its own. ``around`` is the traffic of others on the fabric, and flows take
links with room left (``background``). `replan_jobs` makes the next revision of plans while the jobs
run. `plan_job` plans one job.

Ranks of one host share its ports, whatever their job, so each gets its own: it listens on the
next free ones, and takes every n-th source port from ``first_source`` on, n being the ranks of the
host. Ports of other plans are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harp.routing.deployment import PROTOCOLS, Deployment, Flow, Rank, split_address
from harp.routing.discovered import Map, plan_discovered
from harp.routing.path_plan import PathPlan, PlanError
from harp.routing.planner import plan_paths, replan
from harp.routing.source_ports import turns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from harp.routing.background_load import Background
    from harp.routing.fabric import Fabric
    from harp.routing.source_ports import Bonds

    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PortRange:
    """The ports that a job may use on each host, by default none that Linux gives to others.

    Its ``ip_local_port_range`` is 32768 to 60999.
    """

    listen: int = 61000
    """The first of the ports that ranks listen on; those up to ``first_source`` may follow."""
    first_source: int = 61256
    last_source: int = 65535


@dataclass(frozen=True, eq=False)
class Ranks:
    """Places of ranks: arrays of shape (ranks,).

    ``host``, ``endpoint``: number of the host, and of the first of the ``nics`` NICs (endpoints of
    the fabric) that are the rank's.
    """

    host: Ints
    endpoint: Ints
    nics: Ints
    names: tuple[str, ...]
    """Names of the hosts."""


@dataclass(frozen=True)
class Wanted:
    """Communication of ranks: pairs (from, to) that send, and the connections of each."""

    pairs: Sequence[tuple[int, int]]
    connections: int = 1
    """Connections of each pair; NCCL makes one for each channel."""
    paths: int = 1
    """Paths of each connection over each NIC: HARP_PATHS."""
    engines: int = 1
    """Engines of each NIC: HARP_ENGINES."""
    ports: PortRange = field(default_factory=PortRange)
    protocol: str = "udp"
    """Protocol of the flows, udp or tcp; jobs that are planned together have the same."""


class Job(NamedTuple):
    """A job: its ranks, and what they do."""

    ranks: Ranks
    wanted: Wanted


class _Flows(NamedTuple):
    """Flows to plan, arrays of shape (flows,): ranks, endpoints, and target port.

    Ranks are counted through all jobs.
    """

    sender: Ints
    receiver: Ints
    src: Ints
    dst: Ints
    target: Ints

    def take(self, which: Ints) -> _Flows:
        """Select some."""
        return _Flows(*(column[which] for column in self))


@dataclass(frozen=True, eq=False)
class _Sources:
    """Source ports: lists of them, and which of these each rank may choose from."""

    lists: list[Ints]
    of_rank: Ints

    @classmethod
    def share(cls, host: Ints, ports: PortRange, taken: Mapping[int, frozenset[int]]) -> _Sources:
        """Share the ports of each host among its ranks; ranks that may have the same, have a list.

        Raises ValueError where a rank is left without any.
        """
        place, many = turns(host)
        crowd = int(many.max(initial=1))
        number: dict[tuple[int, int], int] = {}
        lists: list[Ints] = []
        of_rank = np.empty(host.size, np.int64)
        for rank, (at, own) in enumerate(zip(host.tolist(), place.tolist(), strict=True)):
            key = own, at if taken.get(at) else -1
            if key not in number:
                number[key] = len(lists)
                some = np.arange(ports.first_source + own, ports.last_source + 1, crowd)
                lists.append(np.setdiff1d(some, list(taken.get(at, ()))))
                if not lists[-1].size:
                    raise ValueError(f"no source port from {ports.first_source} to "
                                     f"{ports.last_source} is left for rank {rank} on its host")
            of_rank[rank] = number[key]
        return cls(lists, of_rank)


def plan_job(fabric: Fabric, ranks: Ranks, wanted: Wanted, discovered: Map | None = None,
             bonds: Bonds | None = None, around: Background | None = None) -> Deployment:
    """Plan one job, as `plan_jobs` does several."""
    return plan_jobs(fabric, [Job(ranks, wanted)], discovered, bonds, around)[0]


def plan_jobs(fabric: Fabric, jobs: Sequence[Job], discovered: Map | None = None,
              bonds: Bonds | None = None, around: Background | None = None) -> list[Deployment]:
    """Plan all ``jobs`` on ``fabric``; its endpoints have the NICs' real addresses.

    Pairs on one host do not use the network and are passed over. With ``discovered`` the switches'
    hash does not count: flows take paths of that map, and those that it does not have are passed
    over as well. ``bonds`` is as for `plan_paths`. Loads are those of all jobs together, over what
    ``around`` leaves of the links' rates. Raises ValueError where the hosts have not enough
    ports, UnreachableError where no path is left, and PlanError where the map does not fit the
    fabric, or holds paths of UDP and a job has flows of TCP.
    """
    ports, taken = _ports_of(jobs), {} if around is None else around.ports
    listens = _listens(jobs, ports, taken)
    flows = _flows(jobs, listens)
    sources = _Sources.share(_hosts(jobs), ports, taken)
    left, demand = _left(fabric, around), _demand(fabric, flows.src)
    protocol = _protocol_of(jobs)
    if discovered is None:
        plan = plan_paths(left, flows.src, flows.dst, demand, target=flows.target, bonds=bonds,
                          protocol=PROTOCOLS[protocol], **_choice_of_ports(jobs, flows, sources))
    elif protocol != "udp":
        raise PlanError("maps hold the paths of UDP, and this job's flows are TCP's, which "
                        "switches hash otherwise: plan it by the topology's hash, without maps")
    else:
        flows, plan = _plan_discovered(left, flows, demand, discovered, sources,
                                       by_rank=_splits(jobs))
    known = fabric.fingerprint if discovered is None else discovered.fingerprint(fabric)
    return _deployments(known, fabric, jobs, listens, flows, plan)


def replan_jobs(fabric: Fabric, jobs: Sequence[Job], before: Sequence[Deployment],
                bonds: Bonds | None = None, around: Background | None = None) -> list[Deployment]:
    """Make plans that jobs follow fit the fabric as it is now, moving as few flows as it takes.

    The answers have the same flows in the same order, so engines that follow ``before`` can go on
    by them while they run. Raises PlanError where ``before`` is of other jobs or another fabric,
    and UnreachableError where no path is left.
    """
    listens = _listens_before(jobs, before)
    flows = _flows(jobs, listens)
    if any(job.wanted.protocol != plan.protocol for job, plan in zip(jobs, before, strict=True)):
        raise PlanError(f"its flows are {before[0].protocol}'s, and the job's "
                        f"{jobs[0].wanted.protocol}'s: make it anew with harp plan, and start the "
                        "job anew")
    ends = [(flow.sender + first, flow.receiver + first, flow.target)
            for plan, first in zip(before, _first_ranks(jobs), strict=True) for flow in plan.flows]
    if ends != [(sender, receiver, _address(fabric, dst, target)) for sender, receiver, _, dst,
                target in zip(*(column.tolist() for column in flows), strict=True)]:
        raise PlanError("it has other flows than the job as it is now, and what runs follows those "
                        "only: make it anew with harp plan, and start the job anew")
    try:
        paths = replace(before[0], flows=tuple(flow for plan in before
                                               for flow in plan.flows)).paths(fabric)
    except KeyError as error:
        raise PlanError(f"the fabric has no {error.args[0]}, which it names: it was made for "
                        "another one") from error
    sources = _Sources.share(_hosts(jobs), _ports_of(jobs), {} if around is None else around.ports)
    plan = replan(paths, _left(fabric, around), bonds=bonds,
                  **_choice_of_ports(jobs, flows, sources))
    made = _deployments(fabric.fingerprint, fabric, jobs, listens, flows, plan)
    return [replace(new, tuning=old.tuning) for new, old in zip(made, before, strict=True)]


# ---- ports

def _ports_of(jobs: Sequence[Job]) -> PortRange:
    """The ports of all jobs. Raises ValueError where they differ."""
    ports = jobs[0].wanted.ports
    if any(job.wanted.ports != ports for job in jobs):
        raise ValueError("jobs that are planned together must have the same ports")
    return ports


def _protocol_of(jobs: Sequence[Job]) -> str:
    """Return the protocol of all jobs' flows. Raises ValueError where they differ."""
    if len({job.wanted.protocol for job in jobs}) > 1:
        raise ValueError("jobs that are planned together must have the same protocol")
    return jobs[0].wanted.protocol


def _listens(jobs: Sequence[Job], ports: PortRange, taken: Mapping[int, frozenset[int]]) -> Ints:
    """First port that each rank listens on, one an engine, the same at all of its NICs."""
    engines = np.repeat([job.wanted.engines for job in jobs], [job.ranks.host.size for job in jobs])
    following: dict[int, int] = {}
    listens = np.empty(engines.size, np.int64)
    for rank, (host, need) in enumerate(zip(_hosts(jobs).tolist(), engines.tolist(), strict=True)):
        first = following.get(host, ports.listen)
        while not taken.get(host, frozenset()).isdisjoint(range(first, first + need)):
            first += 1
        listens[rank], following[host] = first, first + need
    last = max(following.values(), default=ports.listen)
    if last > ports.first_source:
        raise ValueError(f"{last - ports.listen} ports are needed to listen on a host, and "
                         f"from {ports.listen} to {ports.first_source - 1} there are "
                         f"{ports.first_source - ports.listen}")
    return listens


def _listens_before(jobs: Sequence[Job], before: Sequence[Deployment]) -> Ints:
    """First port that each rank of a plan listens on."""
    for job, plan in zip(jobs, before, strict=True):
        if [job.ranks.names[host] for host in job.ranks.host] != [rank.host for rank in plan.ranks]:
            raise PlanError("it has other ranks than the job as it is now: make it anew with harp "
                            "plan, and start the job anew")
    return np.array([split_address(rank.listen[0])[1] for plan in before for rank in plan.ranks],
                    np.int64)


def _choice_of_ports(jobs: Sequence[Job], flows: _Flows, sources: _Sources) -> dict[str, Any]:
    """The port arguments of `plan_paths` and `replan`."""
    return {"ports": sources.lists, "sets": sources.of_rank[flows.sender],
            "apart": flows.sender if _splits(jobs) else None}


def _splits(jobs: Sequence[Job]) -> bool:
    """Whether ranks have several engines.

    Two of them cannot have one port, and which of them connects is not known.
    """
    return any(job.wanted.engines > 1 for job in jobs)


# ---- flows

def _hosts(jobs: Sequence[Job]) -> Ints:
    return np.concatenate([job.ranks.host for job in jobs])


def _first_ranks(jobs: Sequence[Job]) -> list[int]:
    """Number of the first rank of each job, counted through all."""
    return [0, *np.cumsum([job.ranks.host.size for job in jobs]).tolist()][:-1]


def _flows(jobs: Sequence[Job], listens: Ints) -> _Flows:
    """Flows of all connections of all jobs, each pair's in the order in which these are made."""
    made = [_flows_of(job, listens[first:first + job.ranks.host.size], first)
            for job, first in zip(jobs, _first_ranks(jobs), strict=True)]
    return _Flows(*map(np.concatenate, zip(*made, strict=True)))


def _flows_of(job: Job, listens: Ints, first: int) -> _Flows:
    ranks, wanted = job
    pairs = np.array([pair for pair in wanted.pairs if ranks.host[pair[0]] != ranks.host[pair[1]]],
                     np.int64).reshape(-1, 2)
    sender, receiver = np.repeat(pairs, wanted.connections * wanted.paths, axis=0).T
    number = np.tile(np.repeat(np.arange(wanted.connections), wanted.paths), len(pairs))
    return _Flows(
        first + sender, first + receiver, ranks.endpoint[sender] + number % ranks.nics[sender],
        ranks.endpoint[receiver] + number % ranks.nics[receiver],
        listens[receiver] + number // ranks.nics[receiver] % wanted.engines)


def _left(fabric: Fabric, around: Background | None) -> Fabric:
    return fabric if around is None else around.left(fabric)


def _demand(fabric: Fabric, src: Ints) -> NDArray[np.float64]:
    """Each flow's share of its NIC's rate."""
    rate = fabric.link_bps[fabric.endpoint_ports[src, 0]]
    return np.asarray(rate / np.bincount(src, minlength=1)[src])


def _plan_discovered(fabric: Fabric, flows: _Flows, demand: NDArray[np.float64], discovered: Map,
                 sources: _Sources, *, by_rank: bool) -> tuple[_Flows, PathPlan]:
    """Plan the flows that have paths in the map, with ports of their ranks."""
    own = [set(some.tolist()) for some in sources.lists]
    choices = []
    for sender, _, src, dst, target in zip(*flows, strict=True):
        usable = own[sources.of_rank[sender]]
        choices.append([choice._replace(ports=ports) for choice in discovered.choices(
            fabric, int(src), int(dst), int(target))
            if (ports := tuple(port for port in choice.ports if port in usable))])
    known = np.array([number for number, some in enumerate(choices) if some], np.int64)
    flows = flows.take(known)
    ends = zip(flows.src.tolist(), flows.dst.tolist(), strict=True)
    return flows, plan_discovered(
        fabric, flows.src, flows.dst, demand[known], flows.target,
        [choices[number] for number in known], flows.sender.tolist() if by_rank else list(ends))


# ---- what comes of it

def _deployments(fingerprint: str, fabric: Fabric, jobs: Sequence[Job], listens: Ints,
                 flows: _Flows, plan: PathPlan) -> list[Deployment]:
    """Give each job its part."""
    firsts = _first_ranks(jobs)
    owner = np.searchsorted(firsts, flows.sender, "right") - 1
    down = tuple(fabric.cable_names[link] for link in np.flatnonzero(~fabric.link_up))
    return [Deployment(
        fingerprint, _settings(job), plan.max_load, plan.bound, plan.ecmp_load, plan.unrealised,
        tuple(_ranks(fabric, job, listens[first:])),
        tuple(_flow_rows(fabric, flows, plan, np.flatnonzero(owner == number), first)),
        without=down, protocol=job.wanted.protocol)
        for number, (job, first) in enumerate(zip(jobs, firsts, strict=True))]


def _ranks(fabric: Fabric, job: Job, listens: Ints) -> Iterator[Rank]:
    ranks, mbps = job.ranks, _mbps(fabric)
    for rank, (host, endpoint, nics) in enumerate(zip(
            ranks.host.tolist(), ranks.endpoint.tolist(), ranks.nics.tolist(), strict=True)):
        ends = [(endpoint + nic, int(listens[rank]) + engine)
                for nic in range(nics) for engine in range(job.wanted.engines)]
        yield Rank(rank, ranks.names[host], tuple(_address(fabric, *end) for end in ends),
                   tuple(mbps[nic] for nic, _ in ends))


def _mbps(fabric: Fabric) -> list[int]:
    """Rate of each NIC, of all of its ports that are up."""
    rates = np.where(fabric.live_ports, fabric.link_bps[fabric.endpoint_ports], 0.0).sum(axis=1)
    return [round(rate / 1e6) for rate in rates.tolist()]


def _flow_rows(fabric: Fabric, flows: _Flows, plan: PathPlan, which: Ints,
               first: int) -> Iterator[Flow]:
    for sender, receiver, src, dst, target, port, links in zip(
            *(column[which].tolist() for column in (*flows, plan.source_port, plan.links)),
            strict=True):
        yield Flow(sender - first, receiver - first, _address(fabric, src, port),
                   _address(fabric, dst, target),
                   tuple(fabric.cable_names[link] for link in links if link >= 0))


def _settings(job: Job) -> dict[str, str]:
    """The environment in which the plan holds."""
    ranks, wanted = job
    found = {"HARP_PATHS": str(wanted.paths), "HARP_ENGINES": str(wanted.engines)}
    if wanted.protocol != "udp":
        found["HARP_PORT"] = wanted.protocol
    several = len(np.unique(ranks.endpoint)) > len(np.unique(ranks.host))
    if several or ranks.nics.max(initial=1) > 1:
        found["NCCL_CROSS_NIC"] = "0"  # by default NCCL swaps the NICs of odd hosts' channels
    return found


def _address(fabric: Fabric, endpoint: int, port: int) -> str:
    return f"{fabric.endpoint_texts[endpoint]}:{port}"
