"""Port selection of bonded NICs.

LACP bonds hash. The formulas are those of the Linux bonding driver's ``xmit_hash_policy``
(kernel documentation, ``networking/bonding.rst``), on IPv4 and as a little-endian host computes
them, which reads header fields byte by byte from the low end:

- ``lacp-2+3``: MAC and IP addresses only, so all flows between two hosts share one port;
- ``lacp-3+4``: addresses and ports, then the lowest bit dropped, so that source ports 2n and
  2n + 1 between the same hosts always share one port of two.

Two flows that share a port share its rate while the other port idles: see ``colliding_pair``.
``dynamic`` aggregation instead splits each flow over the ports in proportion to weights, and
``update_weights`` moves the weights to what each port delivers.

``none`` uses the first port only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from harp.routing.ecmp import nth_true
from harp.routing.hashes import DYNAMIC_PORTS_N, FIRST_DYNAMIC_PORT

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from harp.routing.fabric import Fabric, Flows
    from harp.routing.hashes import FiveTuples

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

Policy = Literal["none", "lacp-2+3", "lacp-3+4"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
"""The policies that give a flow one port; ``dynamic`` is ``split``."""

MIN_SHARE = 1e-3
"""Least weight of a live port: enough to notice that it delivers again, too little to matter."""


_STEER_TRIES, _STEER_STEP = 32, 977
"""Each try halves what is left; the step is prime, so that flows keep out of each other's way."""

_ETH_P_IP_LE = 0x0008  # EtherType 0x0800 of IPv4, as a little-endian host reads it


def layer2_3(tuples: FiveTuples, mac_xor: ArrayLike = 0) -> NDArray[np.uint32]:
    """Hash of Linux's layer2+3 policy.

    ``mac_xor`` is the exclusive or of the last bytes of both MAC addresses. In a routed fabric
    the far address is the gateway's, so that it is constant for a NIC and only relabels ports.
    """
    hashed = (tuples.src_ip ^ tuples.dst_ip).byteswap() ^ np.uint32(_ETH_P_IP_LE)
    return _fold(hashed ^ np.asarray(mac_xor, np.uint32))


def layer3_4(tuples: FiveTuples) -> NDArray[np.uint32]:
    """Hash of Linux's layer3+4 policy for unfragmented TCP and UDP."""
    ports = tuples.src_port.astype(np.uint32) << np.uint32(16) | tuples.dst_port
    return _fold((ports ^ tuples.src_ip ^ tuples.dst_ip).byteswap()) >> np.uint32(1)


def choose(fabric: Fabric, flows: Flows, policy: Policy) -> Ints:
    """The NIC's port that each flow leaves by, hashed over the ports that are up.

    A NIC with no live port gets port 0; routing then says that it is unreachable. Raises
    ValueError for an unknown policy.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown bond policy {policy!r}; there are {', '.join(POLICIES)}")
    if policy == "none":
        return np.zeros(len(flows.src), np.int64)
    hashed = layer2_3(flows.tuples) if policy == "lacp-2+3" else layer3_4(flows.tuples)
    live = fabric.live_ports[flows.src]
    return nth_true(live, hashed % np.maximum(live.sum(axis=1), 1))


def colliding_pair(
    fabric: Fabric, src: int, dst: int, policy: Policy, first_port: int = FIRST_DYNAMIC_PORT
) -> Flows:
    """Find two flows of the same endpoints, by source port, that ``policy`` puts on one port.

    The known bad case of bonds: two queue pairs between two hosts get one port's rate.
    """
    candidates = np.arange(first_port, first_port + 1 + fabric.endpoint_ports.shape[1])
    chosen = choose(fabric, fabric.flows(src, dst, candidates), policy)
    same = np.flatnonzero(chosen == np.bincount(chosen).argmax())[:2]
    return fabric.flows(src, dst, candidates[same])


class Split(NamedTuple):
    """Parts of flows: part ``i`` is ``weight[i]`` of flow ``parent[i]`` and leaves by ``port[i]``.

    ``flows`` are the parts as flows with source ports of their own, to be routed with ``port``;
    the weights of a flow sum to 1.
    """

    parent: Ints
    flows: Flows
    port: Ints
    weight: Floats


def split(fabric: Fabric, flows: Flows, weights: ArrayLike | None = None) -> Split:
    """Split each flow over the live ports of its NIC, and over those of the NIC at the far end.

    ``weights`` has shape (endpoints, most ports), not necessarily normalised; the default is each
    port's rate. The n-th part of a flow gets a source port whose hash makes it arrive by the n-th
    live port of the far NIC (modulo their number): without that, parts that leave by two ports
    may arrive by one. A flow of a NIC without a live port has no part. Raises UnreachableError.
    """
    live = fabric.live_ports
    raw = fabric.link_bps[fabric.endpoint_ports] if weights is None else np.asarray(weights, float)
    share = np.where(live, raw, 0.0)[flows.src]
    parent, port = np.nonzero(share)
    weight = share[parent, port] / share.sum(axis=1)[parent]
    return Split(parent, _steer(fabric, flows.take(parent), port), port, weight)


def _steer(fabric: Fabric, parts: Flows, port: Ints) -> Flows:
    """Choose source ports so that parts arrive by the live port of the same rank as ``port``."""
    live = fabric.live_ports
    rank = (np.cumsum(live, axis=1) - 1)[parts.src, port]
    wanted = fabric.endpoint_ports[
        parts.dst, nth_true(live[parts.dst], rank % np.maximum(live[parts.dst].sum(axis=1), 1))
    ]
    src_port = parts.tuples.src_port.copy()
    stray = np.flatnonzero(parts.src != parts.dst)
    for _ in range(_STEER_TRIES):
        tried = parts.take(stray)
        tried = tried._replace(tuples=tried.tuples._replace(src_port=src_port[stray]))
        ptr, links = fabric.route(tried, port[stray])
        stray = stray[links[ptr[1:] - 1] ^ 1 != wanted[stray]]
        if not len(stray):
            break
        src_port[stray] = FIRST_DYNAMIC_PORT + (
            src_port[stray] + _STEER_STEP) % DYNAMIC_PORTS_N
    return parts._replace(tuples=parts.tuples._replace(src_port=src_port))


def update_weights(weights: ArrayLike, delivered_bps: ArrayLike, gain: float = 0.5) -> Floats:
    """Move weights towards the rates that the ports deliver; shape (..., ports), sums of 1.

    ``delivered_bps`` is what each port delivered *while it had something to send*, so that a port
    which waits for the others is not taken for a slow one. A fixed point has weights in
    proportion to these rates, at which all ports finish together; the distance to it shrinks by
    ``1 - gain`` an update. A port that delivers nothing keeps ``MIN_SHARE``, so that its recovery
    is seen. With nothing delivered at all the weights stay.
    """
    old, rates = np.asarray(weights, np.float64), np.asarray(delivered_bps, np.float64)
    total = rates.sum(axis=-1, keepdims=True)
    target = np.where(total > 0, rates / np.where(total > 0, total, 1.0), old)
    moved = np.maximum(old + gain * (target - old), MIN_SHARE)
    return np.asarray(moved / moved.sum(axis=-1, keepdims=True))


def aggregate_bps(weights: ArrayLike, port_bps: ArrayLike) -> Floats:
    """Rate of a transfer split by ``weights`` over ports: it ends when its last part ends."""
    share, rates = np.asarray(weights, np.float64), np.asarray(port_bps, np.float64)
    used = share > 0
    return np.asarray(np.min(np.where(used, rates / np.where(used, share, 1.0), np.inf), axis=-1))


def _fold(hashed: NDArray[np.uint32]) -> NDArray[np.uint32]:
    hashed = hashed ^ hashed >> np.uint32(16)
    return hashed ^ hashed >> np.uint32(8)
