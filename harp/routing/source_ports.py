"""Source ports, of UDP or TCP, that make the switches' own hashing take a wanted path.

Every switch on the path has some number of equal-cost next hops and takes one by the hash of the
five-tuple, so a random source port follows a path of probability 1 / (product of the next hops).
The search hashes a batch of each flow's ports at once, keeps those that agree at every hop, and
goes on with more ports for the flows that have found none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from harp.routing import bond, hashes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from harp.routing.fabric import Fabric, Flows

    Ints = NDArray[np.int64]
    Bonds = Sequence[bond.Policy | None]
    PortLists = ArrayLike | Sequence[ArrayLike]

DYNAMIC_PORTS = hashes.FIRST_DYNAMIC_PORT + np.arange(hashes.DYNAMIC_PORTS_N)
"""The ports that RFC 6335 leaves for any use."""

FIRST_BATCH = 64
BATCH_ENTRIES = 1 << 21
"""Most (flow, port) pairs hashed at once: some tens of megabytes."""


@dataclass(frozen=True, eq=False)
class FlowPorts:
    """The source ports that each flow can use.

    ``table`` has shape (sets, most ports) and ``count`` (sets,): source ports to choose from. The
    others have shape (flows,): the set of each flow in ``which``, its place ``turn`` among the
    ``many`` flows of its group, which all take different ports, and its ``target`` port.
    """

    table: Ints
    count: Ints
    which: Ints
    turn: Ints
    many: Ints
    target: Ints
    policy: Ints
    """Number in `bond.POLICIES` of what chooses the port of each flow's NIC; -1: the sender."""
    protocol: int = hashes.UDP
    """IP's number of what the flows are."""

    @classmethod
    def of(cls, src: Ints, dst: Ints, endpoints: int, ports: PortLists, *,
           sets: ArrayLike | None = None, apart: ArrayLike | None = None,
           target: ArrayLike = hashes.ROCE_PORT,
           bonds: Bonds | None = None, protocol: int = hashes.UDP) -> FlowPorts:
        """Take one list of ports for all flows, or several; ``sets`` then names each flow's list.

        Without ``sets`` there is a list an endpoint. Flows that are alike in ``apart`` take
        different ports; without it those between the same two endpoints do. ``bonds`` has the
        policy of each endpoint whose kernel chooses the port of its NIC. Raises ValueError for an
        empty list, a port outside 1..65535, or a wrong number of lists.
        """
        given: Any = ports
        flat = given.ndim == 1 if isinstance(given, np.ndarray) else not any(map(np.ndim, given))
        lists = [np.unique(np.asarray(one, np.int64)) for one in ([given] if flat else given)]
        if not flat and sets is None and len(lists) != endpoints:
            raise ValueError(f"{len(lists)} lists of source ports for {endpoints} endpoints")
        for number, one in enumerate(lists):
            if not one.size or one[0] < 1 or one[-1] > 65535:
                raise ValueError(f"source ports of endpoint {number} must be some of 1 to 65535")
        count = np.array([one.size for one in lists])
        table = np.zeros((len(lists), int(count.max())), np.int64)
        for row, one in zip(table, lists, strict=True):
            row[: one.size] = one
        chosen = src if sets is None else np.asarray(sets, np.int64)
        pair = src * (int(dst.max(initial=0)) + 1) + dst
        turn, many = turns(pair if apart is None else np.asarray(apart, np.int64))
        return cls(table, count, np.zeros_like(src) if flat else chosen, turn, many,
                   np.broadcast_to(np.asarray(target, np.int64), src.shape),
                   policies(src, bonds), protocol)

    def take(self, flows: Ints) -> FlowPorts:
        """Take some flows' ports."""
        return replace(self, which=self.which[flows], turn=self.turn[flows],
                       many=self.many[flows], target=self.target[flows], policy=self.policy[flows])

    def candidates(self, nth: Ints) -> Ints:
        """Return port number ``nth`` of each flow, shape (flows, len(nth)); 0 beyond the last."""
        column = self.turn[:, None] + self.many[:, None] * nth
        port = self.table[self.which[:, None], np.minimum(column, self.table.shape[1] - 1)]
        return np.where(column < self.count[self.which][:, None], port, 0)

    @property
    def first(self) -> Ints:
        """The first port of each flow's set, which others of its group may have as well."""
        return np.asarray(self.table[self.which, 0])


def turns(group: Ints) -> tuple[Ints, Ints]:
    """Count the members of each group: each one's place among them, and how many there are."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    place = np.empty(group.size, np.int64)
    place[order] = np.arange(group.size) - np.searchsorted(ordered, ordered)
    many = np.searchsorted(ordered, group, "right") - np.searchsorted(ordered, group)
    return place, many


@dataclass(frozen=True, eq=False)
class Hops:
    """The required choice of each switch on each flow's path; arrays of shape (flows, hops).

    ``first`` (flows,) is the NIC's own link. ``index`` is the wanted place among ``ways``
    equal-cost links: -1 where the wanted link is not among them (it is down, or off the shortest
    paths). ``switch`` is -1 beyond a path's end. ``possible``, shape (flows,), says whether some
    hash could yield the path.
    """

    first: Ints
    switch: Ints
    ways: Ints
    index: Ints
    possible: NDArray[np.bool_]

    def of(self, flows: Ints) -> Hops:
        """Take some flows' hops."""
        return Hops(self.first[flows], self.switch[flows], self.ways[flows], self.index[flows],
                    self.possible[flows])


def wanted_hops(fabric: Fabric, dst: Ints, path: Ints) -> Hops:
    """Look up ``path``, shape (flows, links) padded with -1, in the fabric's next hops.

    Its first link is the NIC's own choice and only has to be up.
    """
    table = fabric.next_hops
    link = path[:, 1:]
    switch = np.where(link >= 0, fabric.link_src[link], -1).astype(np.int64)
    down = table.down[dst][:, None, :]
    arrived = (table.down_src[dst][:, None, :] == switch[:, :, None]) & (switch >= 0)[:, :, None]
    row = table.group[dst][:, None] * table.switches + np.maximum(switch, 0)
    start, ways = table.ptr[row], table.ptr[row + 1] - table.ptr[row]
    place = np.arange(int(ways.max(initial=1)))
    # A last entry keeps the look-up within bounds where a switch has no next hop at all.
    links = np.append(table.links, -1)[np.minimum(start[..., None] + place, len(table.links))]
    same = (links == link[..., None]) & (place < ways[..., None])
    last = (down == link[..., None]) & arrived
    ends = arrived.any(axis=2)
    rank = np.cumsum(arrived, axis=2) - 1
    index = np.where(ends, np.where(last.any(axis=2), (rank * last).sum(axis=2), -1),
                     np.where(same.any(axis=2), np.argmax(same, axis=2), -1))
    possible = ((index >= 0) | (switch < 0)).all(axis=1)
    possible &= (path[:, 0] >= 0) & fabric.link_up[path[:, 0]]
    return Hops(path[:, 0], switch, np.where(ends, arrived.sum(axis=2), ways), index, possible)


def policies(src: Ints, bonds: Bonds | None) -> Ints:
    """Number in `bond.POLICIES` of what chooses the port of each flow's NIC; -1: the sender."""
    if bonds is None:
        return np.full_like(src, -1)
    return np.array([-1 if policy is None else bond.POLICIES.index(policy) for policy in bonds],
                    np.int64)[src]


def bonded(fabric: Fabric, flows: Flows, policy: Ints) -> Ints:
    """Port of its NIC to which each flow's bond hashes it; -1 where the sender chooses."""
    chosen = np.full(policy.size, -1, np.int64)
    for number in np.unique(policy[policy >= 0]):
        some = np.flatnonzero(policy == number)
        chosen[some] = bond.choose(fabric, flows.take(some), bond.POLICIES[number])
    return chosen


def follows(fabric: Fabric, src: Ints, dst: Ints, hops: Hops, port: Ints,
            ports: FlowPorts) -> NDArray[np.bool_]:
    """Whether hashing takes the wanted hops; ``port`` and the answer have shape (flows, ports).

    Port 0 stands for none and never follows.
    """
    alive = np.flatnonzero((port > 0) & hops.possible[:, None])
    flow = alive // port.shape[1]
    flows = fabric.flows(src[flow], dst[flow], port.reshape(-1)[alive], ports.target[flow],
                         ports.protocol)
    hashed = hashes.FlowHashes(flows.tuples, fabric.hash_function)
    leaves = bonded(fabric, flows, ports.policy[flow])
    kept = np.flatnonzero((leaves < 0)
                          | (fabric.endpoint_ports[src[flow], leaves] == hops.first[flow]))
    for hop in range(hops.switch.shape[1]):
        here = flow[kept]
        at = hops.switch[here, hop]
        chooses = np.flatnonzero((at >= 0) & (hops.ways[here, hop] > 1))
        at, here = at[chooses], here[chooses]
        picked = hashed.pick(kept[chooses], fabric.hash_function[at], fabric.hash_salt[at],
                             hops.ways[here, hop])
        wrong = np.zeros(kept.size, np.bool_)
        wrong[chooses] = picked != hops.index[here, hop]
        kept = kept[~wrong]
    result = np.zeros(port.size, np.bool_)
    result[alive[kept]] = True
    return result.reshape(port.shape)


def find_ports(fabric: Fabric, src: Ints, dst: Ints, path: Ints, ports: FlowPorts) -> Ints:
    """Find a source port for each flow that makes it take ``path``; 0 where no port does.

    ``path`` has shape (flows, links), padded with -1.
    """
    found = np.zeros(src.size, np.int64)
    hops = wanted_hops(fabric, dst, path)
    missing = np.flatnonzero(hops.possible)
    tried, batch = 0, FIRST_BATCH
    most = int(ports.count.max())
    while missing.size and tried < most:
        nth = np.arange(tried, min(tried + batch, most))
        some = ports.take(missing)
        port = some.candidates(nth)
        ok = follows(fabric, src[missing], dst[missing], hops.of(missing), port, some)
        first = np.argmax(ok, axis=1)
        hit = ok[np.arange(missing.size), first]
        found[missing[hit]] = port[hit, first[hit]]
        missing = missing[~hit]
        tried += nth.size
        batch = max(FIRST_BATCH, min(4 * batch, BATCH_ENTRIES // max(missing.size, 1)))
    return found
