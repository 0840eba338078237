"""A plan for real ranks: the file that `HARP_PLAN` names, which C and Python read.

`plan_job` plans the flows of ranks that send to one another over NICs with real addresses, each
flow from a UDP source port of its rank's to a port that the other rank listens on. A `Deployment`
is the answer, with a JSON form (``docs/routing-plans.md``), and can be checked against the fabric
that it was made for, as that is now.

Ranks of one host share its UDP ports, so each takes source ports of its own: of the numbers from
``first_source`` on those that are its place on the host, counted round.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harp.collectives.tuning import Tuning, TuningError
from harp.routing.learnt import Map, plan_learnt
from harp.routing.plan import PathPlan, PlanError
from harp.routing.planner import plan_paths
from harp.routing.ports import turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric
    from harp.routing.ports import Bonds

    Ints = NDArray[np.int64]

FORMAT = "harp-plan-1"
LAUNCHERS = {"openmpi": "{host} slots={slots}", "mpich": "{host}:{slots}",
             "torchrun": "{host} --node-rank={node} --nproc-per-node={slots}"}
"""A line for each host: hostfiles of mpirun, and what torchrun is to be told on each host."""
SETTINGS = ("HARP_PATHS", "HARP_ENGINES", "NCCL_CROSS_NIC")
"""Names that a plan may set in a shell."""


@dataclass(frozen=True)
class UdpPorts:
    """The UDP ports that a job may use on each host, by default none that Linux gives to others.

    Its ``ip_local_port_range`` is 32768 to 60999.
    """

    listen: int = 61000
    """The first of the ports that ranks listen on; those up to ``first_source`` may follow."""
    first_source: int = 61256
    last_source: int = 65535


@dataclass(frozen=True, eq=False)
class Ranks:
    """Where ranks are: shape (ranks,) each.

    ``host``, ``endpoint``: number of the host, and of the first of the ``nics`` NICs (endpoints of
    the fabric) that are the rank's.
    """

    host: Ints
    endpoint: Ints
    nics: Ints
    names: tuple[str, ...]
    """Of the hosts."""


@dataclass(frozen=True)
class Wanted:
    """What ranks do: pairs (from, to) that send, and how often each is connected."""

    pairs: Sequence[tuple[int, int]]
    connections: int = 1
    """Of each pair; NCCL makes one for each channel."""
    paths: int = 1
    """Of each connection over each NIC: HARP_PATHS."""
    engines: int = 1
    """Of each NIC: HARP_ENGINES."""
    ports: UdpPorts = field(default_factory=UdpPorts)


@dataclass(frozen=True)
class Rank:
    """A rank: its host, and the addresses and UDP ports it listens on."""

    rank: int
    host: str
    listen: tuple[str, ...]


@dataclass(frozen=True)
class Flow:
    """One path of a connection: from a rank to another, and the links that it takes, by name."""

    sender: int
    receiver: int
    source: str
    target: str
    links: tuple[str, ...]


@dataclass(frozen=True)
class Deployment:
    """A plan for real ranks; ``settings`` are the environment that goes with it.

    ``max_load``, ``bound``, ``ecmp_load`` and ``unrealised`` are those of `PathPlan`.
    """

    fabric: str
    """`Fabric.fingerprint` of what it was made for."""
    settings: dict[str, str]
    max_load: float
    bound: float
    ecmp_load: float
    unrealised: int
    ranks: tuple[Rank, ...]
    flows: tuple[Flow, ...]
    tuning: Tuning | None = None
    """What NCCL's tuner follows (docs/tuning.md)."""

    def to_json(self) -> str:
        """Write it as JSON, a line for each rank and flow."""
        head = {"format": FORMAT, "fabric": self.fabric, "settings": self.settings,
                "max_load": self.max_load, "bound": self.bound, "ecmp_load": self.ecmp_load,
                "unrealised": self.unrealised}
        ranks = [{"rank": rank.rank, "host": rank.host, "listen": rank.listen}
                 for rank in self.ranks]
        flows = [{"from": flow.sender, "to": flow.receiver, "source": flow.source,
                  "target": flow.target, "links": flow.links} for flow in self.flows]
        tuning = "" if self.tuning is None else f',\n "tuning": {self.tuning.to_json().strip()}'
        return (json.dumps(head)[:-1] + f'{tuning},\n "ranks": {_lines(ranks)},\n'
                f' "flows": {_lines(flows)}}}\n')

    @classmethod
    def from_json(cls, text: str) -> Deployment:
        """Read what `to_json` wrote; raises PlanError, one sentence, for anything else."""
        try:
            data: Any = json.loads(text)
        except ValueError as error:
            raise PlanError(f"it is no JSON: {error}") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else None
            raise PlanError(f"its format is {found!r} and this HARP reads {FORMAT!r}: make it anew "
                            "with harp plan")
        try:
            ranks = tuple(Rank(int(rank["rank"]), str(rank["host"]), _texts(rank["listen"]))
                          for rank in data["ranks"])
            flows = tuple(Flow(int(flow["from"]), int(flow["to"]), str(flow["source"]),
                               str(flow["target"]), _texts(flow["links"]))
                          for flow in data["flows"])
            settings = {str(name): str(value) for name, value in data["settings"].items()}
            odd = [name for name in settings if name not in SETTINGS]
            if odd:
                raise PlanError(f"it sets {odd[0]!r}: allowed are {', '.join(SETTINGS)}")
            return cls(str(data["fabric"]), settings,
                       float(data["max_load"]), float(data["bound"]), float(data["ecmp_load"]),
                       int(data["unrealised"]), ranks, flows,
                       Tuning.from_dict(data["tuning"]) if "tuning" in data else None)
        except PlanError:
            raise
        except TuningError as error:
            raise PlanError(f"its tuning table is none: {error}") from error
        except KeyError as error:
            raise PlanError(f"{error.args[0]!r} is missing") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise PlanError(f"a value is not what it should be: {error}") from error

    def hostfile(self, launcher: str) -> str:
        """Hosts in the order of their ranks, as a launcher of `LAUNCHERS` reads them."""
        slots: dict[str, int] = {}
        for rank in self.ranks:
            slots[rank.host] = slots.get(rank.host, 0) + 1
        line = LAUNCHERS[launcher]
        return "".join(line.format(host=host, slots=count, node=node) + "\n"
                       for node, (host, count) in enumerate(slots.items()))

    def flows_of(self, rank: int) -> list[tuple[str, str]]:
        """Source and target of each flow of a rank, as `harp.net.Engine.connect` takes them."""
        return [(flow.source, flow.target) for flow in self.flows if flow.sender == rank]

    def verify(self, fabric: Fabric, bonds: Bonds | None = None) -> None:
        """Walk all flows through the bonds' and the switches' hashing as it is now.

        Raises PlanError if the fabric is another, or a flow strays.
        """
        if fabric.fingerprint != self.fabric:
            raise PlanError(f"it was made for fabric {self.fabric} and this one is "
                            f"{fabric.fingerprint}: links, addresses or hashes have changed, so "
                            "make it anew with harp plan")
        self.paths(fabric).verify(fabric, bonds)

    def paths(self, fabric: Fabric) -> PathPlan:
        """Give the flows as the planner has them, for `verify` and `planner.replan`."""
        endpoint = {str(IPv4Address(int(ip))): number
                    for number, ip in enumerate(fabric.endpoint_ip)}
        link = {fabric.link_name(number): number for number in range(len(fabric.link_src))}
        sources, targets = ([_split(getattr(flow, end)) for flow in self.flows]
                            for end in ("source", "target"))
        src, dst = (np.array([endpoint[ip] for ip, _ in ends], np.int64)
                    for ends in (sources, targets))
        width = max((len(flow.links) for flow in self.flows), default=1)
        links = np.array([[*(link[name] for name in flow.links), *[-1] * (width - len(flow.links))]
                          for flow in self.flows], np.int64).reshape(len(self.flows), width)
        bond_port = np.argmax(fabric.endpoint_ports[src] == links[:, :1], axis=1)
        source_port, target_port = (np.array([port for _, port in ends], np.int64)
                                    for ends in (sources, targets))
        demand = fabric.link_bps[links[:, 0]] / np.maximum(np.bincount(src)[src], 1) \
            if len(src) else np.empty(0)
        return PathPlan(fabric.endpoints, src, dst, demand, source_port, bond_port, links,
                        self.max_load, self.bound, self.ecmp_load, self.unrealised, target_port)


class _Flows(NamedTuple):
    """What is to be planned, shape (flows,) each: ranks, endpoints, and the port gone to."""

    sender: Ints
    receiver: Ints
    src: Ints
    dst: Ints
    target: Ints

    def take(self, which: Ints) -> _Flows:
        """Select some."""
        return _Flows(*(column[which] for column in self))


def plan_job(fabric: Fabric, ranks: Ranks, wanted: Wanted, learnt: Map | None = None,
             bonds: Bonds | None = None) -> Deployment:
    """Plan what ``ranks`` do on ``fabric``, whose endpoints have the NICs' real addresses.

    Pairs on one host do not use the network and are passed over. With ``learnt`` the switches'
    hash is of no account: flows take ways of that map, and those that it does not have are passed
    over as well. ``bonds`` is as for `plan_paths`. Raises ValueError where the hosts have not
    enough UDP ports, UnreachableError where no path is left, and PlanError where the map does not
    fit the fabric.
    """
    place, many = turns(ranks.host)
    listens = _listens(wanted, place, many)
    flows = _flows(ranks, wanted, listens)
    crowd, ports = int(many.max(initial=1)), wanted.ports
    own = [np.arange(ports.first_source + one, ports.last_source + 1, crowd)
           for one in range(crowd)]
    # Two engines of a rank cannot have one UDP port, and which of them connects is not known.
    apart = flows.sender if wanted.engines > 1 else None
    if learnt is None:
        plan = plan_paths(fabric, flows.src, flows.dst, _demand(fabric, flows.src), ports=own,
                          sets=place[flows.sender], apart=apart, target=flows.target, bonds=bonds)
    else:
        flows, plan = _plan_learnt(fabric, flows, learnt, [set(some.tolist()) for some in own],
                                   place, by_rank=wanted.engines > 1)
    return Deployment(
        fabric.fingerprint if learnt is None else learnt.fingerprint(fabric),
        _settings(ranks, wanted), plan.max_load, plan.bound, plan.ecmp_load, plan.unrealised,
        tuple(Rank(rank, ranks.names[int(ranks.host[rank])], tuple(
            _address(fabric, int(ranks.endpoint[rank]) + nic, int(first) + engine)
            for nic in range(int(ranks.nics[rank])) for engine in range(wanted.engines)))
            for rank, first in enumerate(listens)),
        tuple(Flow(int(flows.sender[i]), int(flows.receiver[i]),
                   _address(fabric, int(flows.src[i]), int(plan.source_port[i])),
                   _address(fabric, int(flows.dst[i]), int(flows.target[i])),
                   tuple(fabric.link_name(link) for link in row if link >= 0))
              for i, row in enumerate(plan.links.tolist())))


def _plan_learnt(fabric: Fabric, flows: _Flows, learnt: Map, own: list[set[int]], place: Ints, *,
                 by_rank: bool) -> tuple[_Flows, PathPlan]:
    """Plan the flows of which the map has ways by ports of their ranks."""
    choices = []
    for sender, _, src, dst, target in zip(*flows, strict=True):
        usable = own[place[sender]]
        choices.append([choice._replace(ports=ports) for choice in learnt.choices(
            fabric, int(src), int(dst), int(target))
            if (ports := tuple(port for port in choice.ports if port in usable))])
    known = np.array([number for number, some in enumerate(choices) if some], np.int64)
    flows = flows.take(known)
    ends = zip(flows.src.tolist(), flows.dst.tolist(), strict=True)
    return flows, plan_learnt(
        fabric, flows.src, flows.dst, _demand(fabric, flows.src), flows.target,
        [choices[number] for number in known], flows.sender.tolist() if by_rank else list(ends))


def _demand(fabric: Fabric, src: Ints) -> NDArray[np.float64]:
    """Each flow's share of its NIC's rate."""
    rate = fabric.link_bps[fabric.endpoint_ports[src, 0]]
    return np.asarray(rate / np.bincount(src, minlength=1)[src])


def _listens(wanted: Wanted, place: Ints, many: Ints) -> Ints:
    """First UDP port that each rank listens on, one an engine, the same at all of its NICs."""
    ports, most = wanted.ports, int(many.max(initial=1)) * wanted.engines
    if ports.listen + most > ports.first_source:
        raise ValueError(f"{most} UDP ports are needed to listen on a host, and from "
                         f"{ports.listen} to {ports.first_source - 1} there are "
                         f"{ports.first_source - ports.listen}")
    return np.asarray(ports.listen + place * wanted.engines)


def _settings(ranks: Ranks, wanted: Wanted) -> dict[str, str]:
    """The environment in which the plan holds."""
    found = {"HARP_PATHS": str(wanted.paths), "HARP_ENGINES": str(wanted.engines)}
    several = len(np.unique(ranks.endpoint)) > len(np.unique(ranks.host))
    if several or ranks.nics.max(initial=1) > 1:
        found["NCCL_CROSS_NIC"] = "0"  # by default NCCL swaps the NICs of odd hosts' channels
    return found


def _flows(ranks: Ranks, wanted: Wanted, listens: Ints) -> _Flows:
    """Flows of all connections, each pair's in the order in which these are made."""
    pairs = np.array([pair for pair in wanted.pairs if ranks.host[pair[0]] != ranks.host[pair[1]]],
                     np.int64).reshape(-1, 2)
    sender, receiver = np.repeat(pairs, wanted.connections * wanted.paths, axis=0).T
    number = np.tile(np.repeat(np.arange(wanted.connections), wanted.paths), len(pairs))
    return _Flows(
        sender, receiver, ranks.endpoint[sender] + number % ranks.nics[sender],
        ranks.endpoint[receiver] + number % ranks.nics[receiver],
        listens[receiver] + number // ranks.nics[receiver] % wanted.engines)


def _address(fabric: Fabric, endpoint: int, port: int) -> str:
    return f"{IPv4Address(int(fabric.endpoint_ip[endpoint]))}:{port}"


def _split(address: str) -> tuple[str, int]:
    ip, _, port = address.rpartition(":")
    return ip, int(port)


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is no list")
    return tuple(map(str, values))


def _lines(rows: list[dict[str, Any]]) -> str:
    return "[" + ",\n  ".join(json.dumps(row) for row in rows) + "]"
