"""Fabrics by template: single switch, leaf-spine, rail, three-tier Clos, dual-ToR, explicit.

Every template takes the endpoints (what hangs on the fabric) and the shape of the switches, and
returns a ``Fabric``. Host links take the NIC's rate per port, links between switches take
``rate_bps``; all links have ``latency_s``. Parameters that do not fit raise ValueError with one
sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harp.routing import hashes
from harp.routing.fabric import Fabric

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Endpoints:
    """The NICs that hang on a fabric, one entry each; ``bps`` is the rate of one port.

    Hosts are numbered from 0 without gaps, NICs from 0 within a host.
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
    """The hash function of the switches, and salts that differ per switch or are all 0."""

    function: hashes.HashName = "crc32"
    per_switch: bool = True
    seed: int = 1

    def salts(self, switches: int) -> NDArray[np.uint32]:
        """One salt a switch."""
        if not self.per_switch:
            return np.zeros(switches, np.uint32)
        return np.random.default_rng(self.seed).integers(1, 2**32, switches, dtype=np.uint32)


def leaf_spine(
    endpoints: Endpoints,
    *,
    leaves: int,
    spines: int,
    links: int = 1,
    rate_bps: float = 100e9,
    latency_s: float = 1e-6,
    switch_hash: SwitchHash | None = None,
) -> Fabric:
    """Hosts in blocks of consecutive numbers on the leaves; ``links`` cables a leaf-spine pair."""
    names = [f"leaf{i}" for i in range(leaves)] + [f"spine{i}" for i in range(spines)]
    leaf, spine, _ = np.meshgrid(np.arange(leaves), np.arange(spines), np.arange(links))
    per_leaf = -(-endpoints.hosts // leaves)
    port_switch = np.repeat(endpoints.host // per_leaf, endpoints.ports)
    return build(
        names,
        endpoints,
        port_switch,
        leaf.ravel(),
        leaves + spine.ravel(),
        rate_bps,
        latency_s,
        switch_hash,
    )


def build(
    switches: list[str],
    endpoints: Endpoints,
    port_switch: Ints,
    near: Ints,
    far: Ints,
    rate_bps: float | NDArray[np.float64],
    latency_s: float,
    switch_hash: SwitchHash | None = None,
) -> Fabric:
    """Lay cables: first from each port (in order of endpoint, then port) to ``port_switch``, then
    from switch ``near[i]`` to switch ``far[i]``.
    """
    count, ports = len(switches), endpoints.ports
    owner = np.repeat(np.arange(len(ports)), ports)
    a = np.concatenate([count + owner, near]).astype(np.int32)
    b = np.concatenate([port_switch, far]).astype(np.int32)
    bps = np.concatenate([endpoints.bps[owner], np.broadcast_to(rate_bps, len(near))])
    table = np.full((len(ports), ports.max(initial=1)), -1, np.int32)
    first = np.cumsum(ports) - ports
    table[owner, np.arange(len(owner)) - first[owner]] = 2 * np.arange(len(owner))
    rule = switch_hash or SwitchHash()
    return Fabric(
        switches=tuple(switches),
        endpoints=endpoints.names,
        link_src=np.stack([a, b], axis=1).ravel(),
        link_dst=np.stack([b, a], axis=1).ravel(),
        link_bps=np.repeat(bps, 2),
        link_latency_s=np.full(2 * len(a), latency_s),
        endpoint_ports=table,
        endpoint_host=endpoints.host,
        endpoint_nic=endpoints.nic,
        endpoint_ip=(0x0A000001 + np.arange(len(ports))).astype(np.uint32),
        hash_function=np.full(count, hashes.function_number(rule.function), np.uint8),
        hash_salt=rule.salts(count),
    )
