"""A plan for real ranks: the file that `HARP_PLAN` names, which C and Python read.

A `Deployment` has the flows of ranks over NICs with real addresses, each flow from a source port,
of UDP or TCP, of its rank to a port that the other rank listens on. It has a JSON form
(``docs/use/planned-paths.md``) and can be checked against the current state of its fabric.
`harp.routing.jobs` makes it.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harp.collectives.tuning import Tuning, TuningError
from harp.reading import FileError, check_format, parse
from harp.routing import hashes
from harp.routing.path_plan import PathPlan, PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harp.reading import Node
    from harp.routing.fabric import Fabric
    from harp.routing.source_ports import Bonds

FORMAT = "harp-plan-1"
RANKS_MOST = 1 << 20
MBPS_MOST = 10_000_000
LAUNCHERS = {"openmpi": "{host} slots={slots}", "mpich": "{host}:{slots}",
             "torchrun": "{host} --node-rank={node} --nproc-per-node={slots}"}
"""The line of each host: hostfiles of mpirun, and torchrun's options on each host."""
PROTOCOLS = {"udp": hashes.UDP, "tcp": hashes.TCP}
"""Protocols of planned flows, and the number of each in an IP header, which switches hash."""
SETTINGS = ("HARP_PORT", "HARP_PATHS", "HARP_ENGINES", "NCCL_CROSS_NIC")
"""Names that a plan may set in a shell."""


@dataclass(frozen=True)
class Rank:
    """A rank: its host, and the addresses and ports it listens on."""

    rank: int
    host: str
    listen: tuple[str, ...]
    mbps: tuple[int, ...] = ()
    """Rate of the NIC of each address; a host with a slower NIC detects a stale plan."""


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
    """The table for NCCL's tuner (docs/use/tuning.md)."""
    without: tuple[str, ...] = ()
    """Links that were down when it was made, ``from->to``."""
    protocol: str = "udp"
    """Protocol of its flows: one of `PROTOCOLS`."""

    def to_json(self) -> str:
        """Write it as JSON, a line for each rank and flow."""
        head = {"format": FORMAT, "fabric": self.fabric, "protocol": self.protocol,
                "settings": self.settings,
                "max_load": self.max_load, "bound": self.bound, "ecmp_load": self.ecmp_load,
                "unrealised": self.unrealised,
                **({"without": self.without} if self.without else {})}
        ranks = [{"rank": rank.rank, "host": rank.host, "listen": rank.listen,
                  **({"mbps": rank.mbps} if rank.mbps else {})} for rank in self.ranks]
        flows = [{"from": flow.sender, "to": flow.receiver, "source": flow.source,
                  "target": flow.target, "links": flow.links} for flow in self.flows]
        tuning = "" if self.tuning is None else f',\n "tuning": {self.tuning.to_json().strip()}'
        return (json.dumps(head)[:-1] + f'{tuning},\n "ranks": {_lines(ranks)},\n'
                f' "flows": {_lines(flows)}}}\n')

    @classmethod
    def from_json(cls, text: str) -> Deployment:
        """Read what `to_json` wrote; raises PlanError, one sentence, for anything else."""
        try:
            data = parse(text)
            check_format(data, FORMAT, "make it anew with harp plan")
            made = cls._of(data)
        except FileError as error:
            raise PlanError(str(error)) from error
        except TuningError as error:
            raise PlanError(f"its tuning table is invalid: {error}") from error
        made._check_ranks()
        return made

    @classmethod
    def _of(cls, data: Node) -> Deployment:
        ranks = tuple(Rank(rank["rank"].whole(0, RANKS_MOST - 1), rank["host"].text(),
                           tuple(one.address() for one in rank["listen"].each()),
                           tuple(one.whole(1, MBPS_MOST) for one in rank["mbps"].each())
                           if rank.get("mbps") else ())
                      for rank in data["ranks"].each())
        flows = tuple(Flow(flow["from"].whole(0, RANKS_MOST - 1),
                           flow["to"].whole(0, RANKS_MOST - 1), flow["source"].address(),
                           flow["target"].address(),
                           tuple(link.text() for link in flow["links"].each()))
                      for flow in data["flows"].each())
        settings = {name: value.text() for name, value in data["settings"].items()}
        odd = [name for name in settings if name not in SETTINGS]
        if odd:
            raise PlanError(f"it sets {odd[0]!r}: allowed are {', '.join(SETTINGS)}")
        tuning, without, protocol = map(data.get, ("tuning", "without", "protocol"))
        return cls(data["fabric"].text(), settings, data["max_load"].number(0),
                   data["bound"].number(0), data["ecmp_load"].number(0),
                   data["unrealised"].whole(0, 1 << 53), ranks, flows,
                   Tuning.from_dict(tuning.plain()) if tuning else None,
                   tuple(link.text() for link in without.each()) if without else (),
                   protocol.one_of(*PROTOCOLS) if protocol else "udp")

    def _check_ranks(self) -> None:
        """Raise PlanError if a rank is there twice, or a flow is of a rank that is not there."""
        counts = Counter(rank.rank for rank in self.ranks)
        twice = [rank for rank, count in counts.items() if count > 1]
        if twice:
            raise PlanError(f"rank {twice[0]} is there {counts[twice[0]]} times")
        for number, flow in enumerate(self.flows):
            for rank in (flow.sender, flow.receiver):
                if rank not in counts:
                    raise PlanError(f"flows[{number}] is of rank {rank}, which is not there")

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

    def ports(self, fabric: Fabric) -> Iterator[tuple[int, int]]:
        """Each port that the ranks need, with the number of its host."""
        host = {ip: int(fabric.endpoint_host[number])
                for number, ip in enumerate(fabric.endpoint_texts)}
        for address in (*(address for rank in self.ranks for address in rank.listen),
                        *(flow.source for flow in self.flows)):
            ip, port = split_address(address)
            yield host[ip], port

    def paths(self, fabric: Fabric) -> PathPlan:
        """Give the flows as the planner has them, for `verify` and `planner.replan`."""
        endpoint = {ip: number for number, ip in enumerate(fabric.endpoint_texts)}
        link = {name: number for number, name in enumerate(fabric.cable_names)}
        sources, targets = ([split_address(getattr(flow, end)) for flow in self.flows]
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
                        self.max_load, self.bound, self.ecmp_load, self.unrealised, target_port,
                        PROTOCOLS[self.protocol])


def split_address(address: str) -> tuple[str, int]:
    """Take ``ip:port`` apart."""
    ip, _, port = address.rpartition(":")
    return ip, int(port)


def _lines(rows: list[dict[str, Any]]) -> str:
    return "[" + ",\n  ".join(json.dumps(row) for row in rows) + "]"
