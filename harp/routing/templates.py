"""Fabrics by template: single switch, leaf-spine, rail, three-tier Clos, dual-ToR, explicit.

Every template takes the endpoints and the shape of the switches, and
returns a ``Fabric``. Hosts are spread in blocks of consecutive numbers, evenly, over the leaves.
Host links take the NIC's rate per port, links between switches take ``wires.rate_bps``; all links
have ``wires.latency_s``. Parameters that do not fit raise ValueError with one sentence.

Oversubscription is not a parameter but follows: hosts of a leaf times their rate, over spines
times links times ``rate_bps``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.nearest import nearest_name
from harp.routing import hashes
from harp.routing.fabric import Fabric

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Endpoints:
    """The NICs that hang on a fabric, one entry each; ``bps`` is the rate of one port.

    Hosts are numbered from 0 without gaps, NICs from 0 within a host; both in ascending order.
    """

    names: tuple[str, ...]
    host: NDArray[np.int32]
    nic: NDArray[np.int32]
    ports: NDArray[np.int32]
    bps: NDArray[np.float64]

    @classmethod
    def uniform(cls, hosts: int, nics: int = 1, ports: int = 1, bps: float = 100e9) -> Endpoints:
        """``hosts`` equal hosts named host-0, host-1, ... with NICs eth0, eth1, ..."""
        count = hosts * nics
        names = tuple(f"host-{host}/eth{nic}" for host in range(hosts) for nic in range(nics))
        host, nic = np.divmod(np.arange(count, dtype=np.int32), nics)
        return cls(names, host, nic, np.full(count, ports, np.int32), np.full(count, bps))

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return int(self.host.max(initial=-1)) + 1


@dataclass(frozen=True)
class SwitchHash:
    """The hash function of the switches, and salts that differ per switch or are all the same."""

    function: hashes.HashName = "crc32"
    per_switch: bool = True
    seed: int = 1

    def salts(self, switches: int) -> NDArray[np.uint32]:
        """One salt a switch, drawn from ``seed``; if not, 0, or ``seed`` where linux needs one."""
        if not self.per_switch:
            same = self.seed % 2**32 or 1 if self.function == "linux" else 0
            return np.full(switches, same, np.uint32)
        return np.random.default_rng(self.seed).integers(1, 2**32, switches, dtype=np.uint32)


@dataclass(frozen=True)
class Wires:
    """Rate of a link between switches (bits/s), latency of any link (s), and the switches' hash."""

    rate_bps: float = 100e9
    latency_s: float = 1e-6
    switch_hash: SwitchHash = field(default_factory=SwitchHash)


DEFAULT_WIRES = Wires()


@dataclass(frozen=True)
class Cable:
    """``count`` parallel cables between two switches of an explicit fabric."""

    near: str
    far: str
    bps: float
    latency_s: float
    count: int = 1


def single_switch(endpoints: Endpoints, *, wires: Wires = DEFAULT_WIRES) -> Fabric:
    """Every port of every NIC on one switch."""
    none = np.empty(0, np.int64)
    return _build(["switch0"], endpoints, 0 * _owner(endpoints), _alike(none, none, wires), wires)


def leaf_spine(
    endpoints: Endpoints, *, leaves: int, spines: int, links: int = 1, wires: Wires = DEFAULT_WIRES
) -> Fabric:
    """Two tiers, fully meshed with ``links`` cables a pair; a host's ports share its leaf."""
    _positive("leaf-spine", leaves=leaves, spines=spines, links=links)
    leaf = _blocks("leaf-spine", endpoints, leaves, "leaves")
    names = [*_numbered("leaf", leaves), *_numbered("spine", spines)]
    near, far = _mesh(leaves, spines, links)
    cables = _alike(near, leaves + far, wires)
    return _build(names, endpoints, leaf[_owner(endpoints)], cables, wires)


def rail(
    endpoints: Endpoints,
    *,
    hosts_per_leaf: int,
    spines: int,
    links: int = 1,
    wires: Wires = DEFAULT_WIRES,
) -> Fabric:
    """Rail-optimised fat tree: NIC ``r`` of a host goes to the leaf of rail ``r`` in its group.

    A group is ``hosts_per_leaf`` consecutive hosts and has one leaf a rail; every leaf has
    ``links`` cables to every spine. Two GPUs of one rail and group are one switch apart.
    """
    _positive("rail", hosts_per_leaf=hosts_per_leaf, spines=spines, links=links)
    groups = -(-endpoints.hosts // hosts_per_leaf)
    rails = int(endpoints.nic.max(initial=0)) + 1
    names = [f"group{g}-rail{r}" for g in range(groups) for r in range(rails)]
    leaf = endpoints.host // hosts_per_leaf * rails + endpoints.nic
    near, far = _mesh(len(names), spines, links)
    cables = _alike(near, len(names) + far, wires)
    names += _numbered("spine", spines)
    return _build(names, endpoints, leaf[_owner(endpoints)], cables, wires)


def clos3(
    endpoints: Endpoints,
    *,
    pods: int,
    leaves: int,
    aggs: int,
    cores: int,
    links: int = 1,
    wires: Wires = DEFAULT_WIRES,
) -> Fabric:
    """Three tiers: ``pods`` of ``leaves`` and ``aggs`` (fully meshed by ``links``), and ``cores``.

    The cores fall into ``aggs`` planes of equal size; aggregation switch ``a`` of every pod has
    one cable to each core of plane ``a``.
    """
    _positive("clos3", pods=pods, leaves=leaves, aggs=aggs, cores=cores, links=links)
    if cores % aggs:
        raise ValueError(
            f"clos3 needs cores in {aggs} equal planes, one for each aggregation switch of a pod: "
            f"{cores} cores do not divide by {aggs}"
        )
    leaf = _blocks("clos3", endpoints, pods * leaves, "leaves over all pods")
    names = [f"pod{p}-leaf{i}" for p in range(pods) for i in range(leaves)]
    names += [f"pod{p}-agg{a}" for p in range(pods) for a in range(aggs)]
    names += _numbered("core", cores)
    first_agg, first_core, plane = pods * leaves, pods * (leaves + aggs), cores // aggs
    pod = np.arange(pods)[:, None]
    low, high = _mesh(leaves, aggs, links)
    up, core = _mesh(aggs, plane, 1)
    near = np.concatenate([(pod * leaves + low).ravel(), (first_agg + pod * aggs + up).ravel()])
    to_core = np.broadcast_to(first_core + up * plane + core, (pods, len(up)))
    far = np.concatenate([(first_agg + pod * aggs + high).ravel(), to_core.ravel()])
    return _build(names, endpoints, leaf[_owner(endpoints)], _alike(near, far, wires), wires)


def fat_tree(endpoints: Endpoints, *, k: int, wires: Wires = DEFAULT_WIRES) -> Fabric:
    """Build the k-ary fat tree of k-port switches, which carries up to k^3/4 host ports.

    M. Al-Fares, A. Loukissas, A. Vahdat, "A Scalable, Commodity Data Center Network
    Architecture", SIGCOMM 2008.
    """
    if k < 2 or k % 2:
        raise ValueError(f"a fat tree needs an even number of ports a switch, at least 2, not {k}")
    ports = int(endpoints.ports.sum())
    if ports > k**3 // 4:
        raise ValueError(f"a fat tree with k={k} carries {k**3 // 4} host ports, not {ports}")
    half = k // 2
    return clos3(endpoints, pods=k, leaves=half, aggs=half, cores=half * half, wires=wires)


def dual_tor(
    endpoints: Endpoints, *, pairs: int, spines: int, links: int = 1, wires: Wires = DEFAULT_WIRES
) -> Fabric:
    """Pairs of ToRs ``tor0a``, ``tor0b``, ...: port 0 of each NIC on the a side, port 1 on b."""
    _positive("dual-tor", pairs=pairs, spines=spines, links=links)
    wrong = np.flatnonzero(endpoints.ports != 2)
    if len(wrong):
        name, ports = endpoints.names[wrong[0]], int(endpoints.ports[wrong[0]])
        raise ValueError(f"dual-tor needs NICs with 2 ports, one for each ToR: {name} has {ports}")
    pair = _blocks("dual-tor", endpoints, pairs, "pairs of ToRs")
    names = [f"tor{p}{side}" for p in range(pairs) for side in "ab"] + _numbered("spine", spines)
    tor = (2 * pair[:, None] + np.arange(2)).ravel()
    near, far = _mesh(2 * pairs, spines, links)
    return _build(names, endpoints, tor, _alike(near, 2 * pairs + far, wires), wires)


def explicit(
    endpoints: Endpoints,
    *,
    devices: Sequence[str],
    cables: Iterable[Cable],
    host_links: Iterable[tuple[str, int, str]],
    wires: Wires = DEFAULT_WIRES,
) -> Fabric:
    """Build a fabric by list: switches, cables between them, and (NIC, port, switch) host links.

    Raises ValueError for a name that does not exist (with the nearest that does), a name given
    twice, and a port with no cable or with two.
    """
    switch: dict[str, int] = {}
    for name in devices:
        if name in switch:
            raise ValueError(f"device {name} is listed twice")
        switch[name] = len(switch)
    endpoint = {name: number for number, name in enumerate(endpoints.names)}
    first = np.cumsum(endpoints.ports) - endpoints.ports
    port_switch = np.full(len(_owner(endpoints)), -1, np.int64)
    for nic, port, device in host_links:
        number = _find(endpoint, nic, "NIC")
        if not 0 <= port < endpoints.ports[number]:
            raise ValueError(f"{nic} has {endpoints.ports[number]} ports, there is no port {port}")
        if port_switch[first[number] + port] >= 0:
            raise ValueError(f"port {port} of {nic} has two cables")
        port_switch[first[number] + port] = _find(switch, device, "device")
    bare = np.flatnonzero(port_switch < 0)
    if len(bare):
        owner = int(_owner(endpoints)[bare[0]])
        raise ValueError(f"port {bare[0] - first[owner]} of {endpoints.names[owner]} has no cable")
    laid = [cable for cable in cables for _ in range(cable.count)]
    near = np.array([_find(switch, cable.near, "device") for cable in laid], np.int64)
    far = np.array([_find(switch, cable.far, "device") for cable in laid], np.int64)
    bps = np.array([cable.bps for cable in laid], np.float64)
    latency_s = np.array([cable.latency_s for cable in laid], np.float64)
    return _build(devices, endpoints, port_switch, _Cables(near, far, bps, latency_s), wires)


class _Cables(NamedTuple):
    """Cables between switches as arrays: the numbers of both ends, bits/s, seconds."""

    near: Ints
    far: Ints
    bps: NDArray[np.float64]
    latency_s: NDArray[np.float64]


def _alike(near: Ints, far: Ints, wires: Wires) -> _Cables:
    """Cables that all have the rate and the latency of ``wires``."""
    count = len(near)
    return _Cables(near, far, np.full(count, wires.rate_bps), np.full(count, wires.latency_s))


def _build(
    switches: Sequence[str], endpoints: Endpoints, port_switch: Ints, cables: _Cables, wires: Wires
) -> Fabric:
    """Lay a cable from each port, in order of endpoint and port, then those between switches."""
    count, owner = len(switches), _owner(endpoints)
    ends = np.stack(
        [np.concatenate([count + owner, cables.near]), np.concatenate([port_switch, cables.far])],
        axis=1,
    ).astype(np.int32)
    host_latency_s = np.full(len(owner), wires.latency_s)
    table = np.full((len(endpoints.names), endpoints.ports.max(initial=1)), -1, np.int32)
    first = np.cumsum(endpoints.ports) - endpoints.ports
    table[owner, np.arange(len(owner)) - first[owner]] = 2 * np.arange(len(owner))
    function = hashes.function_number(wires.switch_hash.function)
    return Fabric(
        switches=tuple(switches),
        endpoints=endpoints.names,
        link_src=ends.ravel(),
        link_dst=ends[:, ::-1].ravel(),
        link_bps=np.repeat(np.concatenate([endpoints.bps[owner], cables.bps]), 2),
        link_latency_s=np.repeat(np.concatenate([host_latency_s, cables.latency_s]), 2),
        endpoint_ports=table,
        endpoint_host=endpoints.host,
        endpoint_nic=endpoints.nic,
        endpoint_ip=(0x0A000001 + np.arange(len(endpoints.names))).astype(np.uint32),
        hash_function=np.full(count, function, np.uint8),
        hash_salt=wires.switch_hash.salts(count),
    )


def _owner(endpoints: Endpoints) -> Ints:
    """Endpoint of each port, ports in order of endpoint."""
    return np.repeat(np.arange(len(endpoints.names)), endpoints.ports)


def _blocks(template: str, endpoints: Endpoints, blocks: int, what: str) -> Ints:
    """Block of each endpoint when the hosts are split evenly into ``blocks``."""
    hosts = endpoints.hosts
    if blocks > hosts:
        raise ValueError(f"{template} has {blocks} {what} for {hosts} hosts: give at most {hosts}")
    return endpoints.host.astype(np.int64) * blocks // max(hosts, 1)


def _mesh(near: int, far: int, links: int) -> tuple[Ints, Ints]:
    """Both ends of ``links`` cables between each near and each far switch, near by near."""
    index = np.arange(near * far * links)
    return index // (far * links), index // links % far


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}{i}" for i in range(count)]


def _positive(template: str, **parameters: int) -> None:
    for name, value in parameters.items():
        if value < 1:
            raise ValueError(f"{template} needs at least 1 {name.replace('_', ' ')}, not {value}")


def _find(numbers: dict[str, int], name: str, what: str) -> int:
    if name not in numbers:
        near = nearest_name(name, numbers)
        raise ValueError(f"there is no {what} {name}" + (f"; nearest is {near}" if near else ""))
    return numbers[name]
