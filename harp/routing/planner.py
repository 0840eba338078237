"""Global hash routing: plan the paths of a whole job over switches that only hash.

The switches stay as they are. The planner chooses each flow's UDP source port (and bond port) such
that the hop-by-hop hashing of the five-tuple leads it along a path of its own:

1. *Paths.* Equal flows on a Clos are the edges of a bipartite multigraph at every tier; a balanced
   edge colouring of it gives each flow a column of uplinks (``colouring``), with no collision
   wherever that is possible. Cases that no colouring fits (unequal demands, links of several
   rates, links that are down) go to a local search (``search``).
2. *Ports.* For each flow, hash its usable source ports until one takes the chosen path
   (``source_ports``); of several that do, take one whose ACKs meet few others (``ack_ports``).
3. *What remains.* Flows whose path no usable port yields are spread, by the same local search, over
   the paths that their ports do yield.

If plain ECMP happens to be better, the plan is ECMP. ``replan`` after a failure keeps every flow
that the failure does not touch where it is, as far as the remaining links allow.

>>> from harp.routing.templates import Endpoints, leaf_spine
>>> fabric = leaf_spine(Endpoints.uniform(hosts=8), leaves=2, spines=4)
>>> plan = plan_paths(fabric, src=[0, 1, 2, 3], dst=[4, 5, 6, 7])
>>> plan.max_load, plan.bound
(1.0, 1.0)
>>> plan.verify(fabric)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from harp.routing import bond, hashes
from harp.routing import paths as path_sets
from harp.routing.ack_ports import spread_acks
from harp.routing.colouring import balanced_colouring
from harp.routing.fabric import UnreachableError
from harp.routing.fabric_tiers import Tiers, fair_loads, tiers
from harp.routing.path_plan import PathPlan, link_loads
from harp.routing.repair import repaired_paths
from harp.routing.search import Spread
from harp.routing.source_ports import (
    DYNAMIC_PORTS,
    FlowPorts,
    bonded,
    find_ports,
    follows,
    wanted_hops,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from harp.routing.fabric import Fabric
    from harp.routing.source_ports import Bonds, PortLists

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

MOST_PATHS = 128
"""Equal-cost paths of a flow that the local search regards."""

MOST_WALKED = 64
"""Source ports of a flow and bond port that are walked to learn which paths it can have at all."""

COLOURINGS = 5
"""Colourings that are tried as a start for alternating paths on a degraded fabric."""

MOVES = 600
"""Moves of one local search: some 0.2 s at 1,024 flows."""


@dataclass(frozen=True, eq=False)
class _Job:
    """A planning problem: flows, fabric and usable source ports."""

    fabric: Fabric
    shape: Tiers
    src: Ints
    dst: Ints
    demand_bps: Floats
    fair: Floats
    ports: FlowPorts

    @classmethod
    def of(cls, fabric: Fabric, src: Ints, dst: Ints, demand_bps: Floats, ports: FlowPorts) -> _Job:
        shape = tiers(fabric)
        fair = fair_loads(fabric, shape, src, dst, demand_bps)
        return cls(fabric, shape, src, dst, demand_bps, fair, ports)

    @property
    def bound(self) -> float:
        return float(self.fair.max(initial=0.0))

    @cached_property
    def equal(self) -> bool:
        """Whether all flows want the same."""
        return self.src.size > 0 and float(np.ptp(self.demand_bps)) == 0.0

    @cached_property
    def room(self) -> Floats:
        """Number of equal flows that each link carries within the bound."""
        room: Floats = np.floor(self.bound * self.fabric.link_bps / self.demand_bps.max() + 1e-9)
        return room

    @cached_property
    def full(self) -> NDArray[np.bool_]:
        """Links that carry none, as others use them."""
        return self.room < 1 if self.equal else np.zeros(len(self.fabric.link_bps), np.bool_)

    def find_ports(self, flows: Ints, path: Ints) -> Ints:
        return find_ports(self.fabric, self.src[flows], self.dst[flows], path,
                          self.ports.take(flows))


def plan_paths(
    fabric: Fabric,
    src: ArrayLike,
    dst: ArrayLike,
    demand_bps: ArrayLike | None = None,
    *,
    ports: PortLists = DYNAMIC_PORTS,
    sets: ArrayLike | None = None,
    apart: ArrayLike | None = None,
    target: ArrayLike = hashes.ROCE_PORT,
    bonds: Bonds | None = None,
    protocol: int = hashes.UDP,
) -> PathPlan:
    """Plan the paths of flows from endpoints ``src`` to endpoints ``dst``, shape (flows,) each.

    ``demand_bps`` is the rate that each flow wants, by default the rate of its NIC's first port.
    ``ports`` are the source ports that may be used: one list for all endpoints, or a list of
    lists, one per endpoint; with ``sets``, which names each flow's list, any number. Flows between
    the same two endpoints, or with the same ``apart``, get distinct ones. ``target`` is the port
    that all flows, or each, go to; ``protocol`` IP's number of what they are. ``bonds`` has for
    each endpoint the kernel's policy of choosing among the NIC's ports, None where the sender
    chooses. Raises ValueError for flows that do not fit the fabric and UnreachableError where no
    path is left.
    """
    srcs, dsts = (np.atleast_1d(np.asarray(end, np.int64)) for end in (src, dst))
    _check(fabric, srcs, dsts)
    if demand_bps is None:
        demand_bps = fabric.link_bps[fabric.endpoint_ports[srcs, 0]]
    demand = np.broadcast_to(np.asarray(demand_bps, np.float64), srcs.shape).copy()
    if not (demand > 0).all():
        raise ValueError("every flow must want a rate above zero")
    usable = FlowPorts.of(srcs, dsts, len(fabric.endpoints), ports, sets=sets, apart=apart,
                          target=target, bonds=bonds, protocol=protocol)
    job = _Job.of(fabric, srcs, dsts, demand, usable)
    starts = [_coloured(job)] if job.equal else []
    if not _uniform(job):
        starts.append(np.full((srcs.size, 2 * len(job.shape.block)), -1, np.int64))
    path = min((_paths(job, start) for start in starts), key=lambda made: _max_load(job, made))
    return _realised(job, path, np.zeros(srcs.size, np.int64))


def replan(plan: PathPlan, fabric: Fabric, *, ports: PortLists = DYNAMIC_PORTS,
           sets: ArrayLike | None = None, apart: ArrayLike | None = None,
           bonds: Bonds | None = None) -> PathPlan:
    """Adapt a plan to a fabric on which links have failed (or come back).

    A flow keeps its links if they are all up, with a new source port where a switch next to
    the failure now hashes over fewer links; the others move. More flows move only where that
    brings a link back to its fair share. Ports are as for `plan_paths`. Raises UnreachableError
    where no path is left.
    """
    usable = FlowPorts.of(plan.src, plan.dst, len(fabric.endpoints), ports, sets=sets, apart=apart,
                          target=plan.dst_port, bonds=bonds, protocol=plan.protocol)
    job = _Job.of(fabric, plan.src, plan.dst, plan.demand_bps, usable)
    path = _paths(job, plan.links)
    hops = wanted_hops(fabric, plan.dst, path)
    kept = follows(fabric, plan.src, plan.dst, hops, plan.source_port[:, None],
                   usable)[:, 0]
    return _realised(job, path, np.where(kept, plan.source_port, 0))


def _check(fabric: Fabric, src: Ints, dst: Ints) -> None:
    """Raise ValueError unless the flows fit the fabric."""
    if src.shape != dst.shape or src.ndim != 1:
        raise ValueError(f"{src.size} sources do not pair with {dst.size} destinations")
    for end in (src, dst):
        if end.size and not 0 <= end.min() <= end.max() < len(fabric.endpoints):
            raise ValueError(f"endpoints have numbers 0 to {len(fabric.endpoints) - 1}")
    same = np.flatnonzero(src == dst)
    if same.size:
        raise ValueError(f"flow {same[0]} goes from {fabric.endpoints[src[same[0]]]} to itself")


def _uniform(job: _Job) -> bool:
    """Whether flows, and the links of one tier, are all alike, so that colours can be counted."""
    tier = job.shape.tier[job.fabric.link_src]
    rates = (np.ptp(job.fabric.link_bps[tier == t]) for t in np.unique(tier))
    return job.equal and not any(rates)


def _alone(job: _Job) -> bool:
    """Whether no link is to carry two flows, so that alternating paths find a place for each."""
    if _uniform(job):
        least, most = float(job.fabric.link_bps.min()), float(job.demand_bps.max())
        return job.bound * least <= most * (1 + 1e-9)
    switches = len(job.fabric.switches)
    between = (job.fabric.link_src < switches) & (job.fabric.link_dst < switches)
    return job.equal and bool(job.full.any()) and float(job.room[between].max(initial=0.0)) <= 1


def _coloured(job: _Job, seed: int = 0) -> Ints:
    """Give equal flows paths by edge colouring, tier by tier; -1 where their ends do not meet.

    The order of the flows, and with it the colouring, is random but for seed 0.
    """
    order = np.random.default_rng(seed).permutation(job.src.size) if seed else slice(None)

    def column(_: Ints, at: Ints, to: Ints, columns: int) -> Ints:
        above, over = (job.fabric.link_dst[job.shape.up[end, 0]].astype(np.int64)
                       for end in (at, to))
        # Flows that meet one tier up burden the links of no further tier: a group of their own.
        inside = above == over
        return balanced_colouring(at, to, columns, left_group=2 * above + inside,
                                  right_group=2 * over + inside)

    shuffled = path_sets.mirrored_paths(job.fabric, job.shape, job.src[order], job.dst[order],
                                        column)
    path = np.empty_like(shuffled)
    path[order] = shuffled
    return path


def _paths(job: _Job, path: Ints) -> Ints:
    """Keep the paths that the switches can still take and find others for the rest.

    Where links need no sharing, alternating paths come before local search; should neither reach
    the bound from where the flows are now, other colourings are tried as a start.
    """
    path = _taken(job, path)
    if (path[:, 0] >= 0).all() or not _alone(job):
        return _spread(job, path)
    best = _spread(job, _repaired(job, path))
    for seed in range(1, COLOURINGS):
        if _max_load(job, best) <= job.bound * (1 + 1e-9):
            break
        other = _repaired(job, _taken(job, _coloured(job, seed)))
        if (other[:, 0] >= 0).all():
            return other
    return best


def _repaired(job: _Job, path: Ints) -> Ints:
    free = job.fabric.without(np.flatnonzero(job.full)) if job.full.any() else job.fabric
    return _taken(job, repaired_paths(free, job.shape, job.src, job.dst, path))


def _max_load(job: _Job, path: Ints) -> float:
    return float(link_loads(job.fabric, path, job.demand_bps).max(initial=0.0))


def _taken(job: _Job, path: Ints) -> Ints:
    """Replace by -1 the paths that no hashing takes, and those over links that are full.

    None takes links that are down or off the shortest paths.
    """
    possible = wanted_hops(job.fabric, job.dst, path).possible
    possible &= ~(job.full[path] & (path >= 0)).any(axis=1)
    return np.where(possible[:, None], path, -1)


def _spread(job: _Job, path: Ints) -> Ints:
    """Place the flows without a path and repair what exceeds its fair share; (flows, links)."""
    lost = np.flatnonzero(path[:, 0] < 0)
    load = link_loads(job.fabric, path, job.demand_bps)
    if not lost.size and (load <= job.fair * (1 + 1e-9)).all():
        return path
    choices = path_sets.equal_cost_paths(job.fabric, job.src, job.dst, MOST_PATHS)
    _require_paths(job, choices)
    choices, choice = _with_current(choices, path)
    state = Spread(choices, job.demand_bps, job.fabric.link_bps, job.fair, choice)
    state.place(lost)
    state.improve(MOVES, job.bound)
    return choices[np.arange(job.src.size), state.choice]


def _with_current(choices: Ints, path: Ints) -> tuple[Ints, Ints]:
    """Add each flow's current path as path 0 of its choices; its number, -1 where it has none."""
    width = max(choices.shape[2], path.shape[1])
    choices = np.pad(choices, ((0, 0), (0, 0), (0, width - choices.shape[2])), constant_values=-1)
    current = np.pad(path, ((0, 0), (0, width - path.shape[1])), constant_values=-1)
    return (np.concatenate([current[:, None], choices], axis=1),
            np.where(path[:, 0] >= 0, 0, -1))


def _require_paths(job: _Job, choices: Ints) -> None:
    """Raise UnreachableError for the first flow that has no path at all."""
    none = np.flatnonzero((choices[:, :, 0] < 0).all(axis=1))
    if none.size:
        ends = (job.fabric.endpoints[end[none[0]]] for end in (job.src, job.dst))
        raise UnreachableError("no path leads from {} to {}: the links between are down".format(
            *ends))


def _realised(job: _Job, path: Ints, port: Ints) -> PathPlan:
    """Find the ports that make the switches follow ``path`` (``port`` where known, else 0)."""
    unknown = np.flatnonzero(port == 0)
    port = port.copy()
    port[unknown] = job.find_ports(unknown, path[unknown])
    missing = np.flatnonzero(port == 0)
    if missing.size:
        path, port = _settle(job, path, port)
    ecmp_path, ecmp_port = _ecmp(job)
    load, ecmp_load = _max_load(job, path), _max_load(job, ecmp_path)
    if load > ecmp_load * (1 + 1e-9):
        path, port, load = ecmp_path, ecmp_port, ecmp_load
    elif not missing.size:
        port = spread_acks(job.fabric, job.src, job.dst, path, port, unknown, job.ports)
    bond_port = np.argmax(job.fabric.endpoint_ports[job.src] == path[:, :1], axis=1)
    return PathPlan(job.fabric.endpoints, job.src, job.dst, job.demand_bps, port, bond_port, path,
                    load, job.bound, ecmp_load, int(missing.size), job.ports.target,
                    job.ports.protocol)


def _settle(job: _Job, path: Ints, port: Ints) -> tuple[Ints, Ints]:
    """Spread flows over paths that usable ports yield; those with a port may keep theirs."""
    walked, walked_port = _walks(job)
    known = np.where(port[:, None] > 0, path, -1)
    choices, choice = _with_current(walked, known)
    ports = np.column_stack([port, walked_port])
    state = Spread(choices, job.demand_bps, job.fabric.link_bps, job.fair, choice)
    state.place(np.flatnonzero(choice < 0))
    state.improve(MOVES, job.bound)
    every = np.arange(job.src.size)
    return choices[every, state.choice], ports[every, state.choice]


def _walks(job: _Job) -> tuple[Ints, Ints]:
    """Walk some ports of every flow; paths (flows, walks, links) and their source ports."""
    nth = np.arange(min(MOST_WALKED, int(job.ports.count.max())))
    port = job.ports.candidates(nth)
    # A flow that shares too few ports with others of its group takes the first, as they do.
    port[:, 0] = np.where(port[:, 0] > 0, port[:, 0], job.ports.first)
    out = job.fabric.endpoint_ports[job.src]
    live = (out >= 0) & job.fabric.link_up[out]
    flow, nic, which = np.nonzero(live[:, :, None] & (port > 0)[:, None, :])
    flows = job.fabric.flows(job.src[flow], job.dst[flow], port[flow, which],
                             job.ports.target[flow], job.ports.protocol)
    leaves = bonded(job.fabric, flows, job.ports.policy[flow])
    real = np.flatnonzero((leaves < 0) | (leaves == nic))
    flow, nic, which, flows = flow[real], nic[real], which[real], flows.take(real)
    path = path_sets.walked_paths(job.fabric, flows, nic)
    tagged = path_sets.grouped(job.src.size, flow, np.column_stack([path, port[flow, which]]))
    return tagged[:, :, :-1], tagged[:, :, -1]


def _ecmp(job: _Job) -> tuple[Ints, Ints]:
    """Walk all flows with their first usable ports, as if nothing were planned."""
    port = job.ports.candidates(np.zeros(1, np.int64))[:, 0]
    port = np.where(port > 0, port, job.ports.first)
    flows = job.fabric.flows(job.src, job.dst, port, job.ports.target, job.ports.protocol)
    leaves = bonded(job.fabric, flows, job.ports.policy)
    leaves = np.where(leaves < 0, bond.choose(job.fabric, flows, "lacp-3+4"), leaves)
    return path_sets.walked_paths(job.fabric, flows, leaves), port


__all__ = ["PathPlan", "plan_paths", "replan"]
