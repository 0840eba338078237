"""Discovered paths through a network with an unknown hash: the map that ``harp probe`` writes.

For a source, a target address and a target port, a map lists the routers that a UDP flow passes
with each of some source ports. `Map` matches these paths to a fabric with known addresses of its
switches, and `plan_discovered` spreads flows over them. The map's file calls a path a way.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.reading import FileError, check_format, parse
from harp.routing.fabric_tiers import fair_loads, tiers
from harp.routing.path_plan import PathPlan, PlanError, link_loads
from harp.routing.paths import equal_cost_paths
from harp.routing.planner import MOST_PATHS, MOVES
from harp.routing.search import Spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

FORMAT = "harp-map-1"


@dataclass(frozen=True)
class DiscoveredPath:
    """A path from a source to a target, and the source ports that take it.

    ``routers`` has the address of each router, None for one that does not answer.
    """

    source: str
    target: str
    """Address and UDP port."""
    routers: tuple[str | None, ...]
    ports: tuple[int, ...]


def to_json(paths: list[DiscoveredPath]) -> str:
    """Write a map, one line per path."""
    rows = [json.dumps({"source": path.source, "target": path.target, "routers": path.routers,
                        "ports": path.ports}) for path in paths]
    return f'{{"format": "{FORMAT}", "ways": [\n  ' + ",\n  ".join(rows) + "]}\n"


def from_json(text: str) -> list[DiscoveredPath]:
    """Read what `to_json` wrote; raises PlanError, one sentence, for anything else."""
    try:
        data = parse(text)
        check_format(data, FORMAT, "make it again with harp probe")
        return [DiscoveredPath(row["source"].text(), row["target"].address(),
                               tuple(None if router.is_none() else router.text()
                                     for router in row["routers"].each()),
                               tuple(port.whole(1, 65535) for port in row["ports"].each()))
                for row in data["ways"].each()]
    except FileError as error:
        raise PlanError(f"it is not a map: {error}") from error


class Choice(NamedTuple):
    """A path of a flow, and the source ports that take it."""

    links: tuple[int, ...]
    ports: tuple[int, ...]


class Map:
    """The discovered paths of a fabric; ``routers`` names the switch of an address."""

    def __init__(self, paths: Sequence[DiscoveredPath], routers: Mapping[str, str]) -> None:
        self._paths: dict[tuple[str, str], list[DiscoveredPath]] = {}
        self._routers = routers
        for path in paths:
            self._paths.setdefault((path.source, path.target), []).append(path)
        text = to_json(list(paths)) + json.dumps(dict(routers), sort_keys=True)
        self._digest = hashlib.sha256(text.encode()).hexdigest()

    def fingerprint(self, fabric: Fabric) -> str:
        """Give 16 hex digits that change with the fabric and with the map."""
        text = fabric.fingerprint + self._digest
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def choices(self, fabric: Fabric, src: int, dst: int, port: int) -> list[Choice]:
        """Find the discovered paths from an endpoint to a port of another one.

        If no router of a path is known, each one is assumed to be a different path of the fabric:
        a guess that keeps flows between two ends apart, but other flows only by chance.

        Raises PlanError for a router without a name, and for a path that the fabric does not have.
        """
        source, target = (str(IPv4Address(int(fabric.endpoint_ip[end]))) for end in (src, dst))
        paths = equal_cost_paths(fabric, np.array([src]), np.array([dst]), MOST_PATHS)[0]
        guesses = cycle(_links_of(path) for path in paths.tolist() if path[0] >= 0)
        return [Choice(self._match(fabric, found, paths) if any(found.routers)
                       else next(guesses), found.ports)
                for found in self._paths.get((source, f"{target}:{port}"), ())]

    def _match(self, fabric: Fabric, found: DiscoveredPath, paths: Ints) -> tuple[int, ...]:
        """Find the links of a discovered path among a fabric's; PlanError if none has them."""
        for router in found.routers:
            if router is not None and router not in self._routers:
                raise PlanError(f"routers has no name for {router} on the path from "
                                f"{found.source} to {found.target}")
        wanted = [None if router is None else self._routers[router] for router in found.routers]
        for path in paths.tolist():
            links = _links_of(path)
            passed = [fabric.node_name(int(fabric.link_dst[link])) for link in links[:-1]]
            if len(passed) >= len(wanted) and all(
                    name in {None, at} for name, at in zip(wanted, passed, strict=False)):
                return links
        by = ", ".join(name or "a silent router" for name in wanted)
        raise PlanError(f"{found.source} reaches {found.target} by {by}, a path that the topology "
                        "does not have")


def _links_of(path: Sequence[int]) -> tuple[int, ...]:
    return tuple(link for link in path if link >= 0)


def plan_discovered(fabric: Fabric, src: Ints, dst: Ints, demand_bps: Floats, target: Ints,
                choices: Sequence[Sequence[Choice]], apart: Sequence[object]) -> PathPlan:
    """Spread flows over the discovered paths by local search.

    Flows with the same ``apart`` get different ports as long as their paths have some. For ECMP
    each flow takes the path of its first port.
    """
    width = max((len(choice.links) for some in choices for choice in some), default=1)
    most = max(map(len, choices), default=1)
    paths = np.full((len(src), most, width), -1, np.int64)
    for flow, some in enumerate(choices):
        for number, choice in enumerate(some):
            paths[flow, number, :len(choice.links)] = choice.links
    fair = fair_loads(fabric, tiers(fabric), src, dst, demand_bps)
    bound, every = float(fair.max(initial=0.0)), np.arange(len(src))
    state = Spread(paths, demand_bps, fabric.link_bps, fair, np.full(len(src), -1))
    state.place(every)
    state.improve(MOVES, bound)
    port, doubled = _ports(choices, state.choice, apart)
    hashed = np.array([int(np.argmin([choice.ports[0] for choice in some])) for some in choices],
                      np.int64)
    links = paths[every, state.choice]
    bond_port = np.argmax(fabric.endpoint_ports[src] == links[:, :1], axis=1)
    load, ecmp_load = (float(link_loads(fabric, taken, demand_bps).max(initial=0.0))
                       for taken in (links, paths[every, hashed]))
    return PathPlan(fabric.endpoints, src, dst, demand_bps, port, bond_port, links, load, bound,
                    ecmp_load, doubled, target)


def _ports(choices: Sequence[Sequence[Choice]], chosen: Ints,
           apart: Sequence[object]) -> tuple[Ints, int]:
    """Give a source port for each flow's path, and the number of flows that share a port."""
    used: dict[object, set[int]] = {}
    found, doubled = np.zeros(len(chosen), np.int64), 0
    for flow, number in enumerate(chosen.tolist()):
        ports, taken = choices[flow][number].ports, used.setdefault(apart[flow], set())
        free = [port for port in ports if port not in taken]
        found[flow] = (free or ports)[0]
        doubled += not free
        taken.add(int(found[flow]))
    return found, doubled
