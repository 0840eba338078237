"""Placement of a job: the GPU of each rank, for each channel and kind of plan.

With topology affinity, the order of hosts lets a ring over them leave every ToR once
(`harp.routing.affinity`). If a host has several NICs or vNICs, each channel of a plan begins at
another GPU, so that channels share the NICs, as NCCL's do (a GPU with several NICs of its own gives
each channel another of them: `sim.network.transport`). With affinity a ring runs through hosts
alternately up and down, so that it leaves a host and enters the next by the same NIC index (rail);
without it a ring leaves by one NIC and enters by another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from harp.collectives.alltoallv import WAYS
from harp.routing.affinity import ring_order
from sim.schema.nccl_defaults import peer_channels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from sim.cluster.cluster import Cluster

    Ints = NDArray[np.int64]


RINGS = ("ring", "reduce-scatter", "allgather", "topk")
"""Plans that are one ring over all ranks."""
EXCHANGES = ("alltoall", "hierarchical-alltoall",
             *(f"{way} {collective}" for way in WAYS for collective in ("alltoallv", "combine")))
"""Plans in which ranks send to many others at once."""


@dataclass(frozen=True, eq=False)
class Placement:
    """GPU of each rank, one array a channel, shape (channels, ranks)."""

    rings: Ints
    others: Ints
    exchanges: int
    """Channels of an all-to-all."""

    def of(self, plan: str) -> Sequence[Ints]:
        """Placement of a plan by its name."""
        if plan in EXCHANGES:
            return list(self.others[:self.exchanges])
        return list(self.rings if plan in RINGS else self.others)


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of a job."""

    gpus: Ints
    """GPUs, host by host."""
    host_group: int
    """`common_group` of them."""
    placement: Placement


_kept: WeakKeyDictionary[Cluster, dict[tuple[object, ...], Ranks]] = WeakKeyDictionary()


def rank_gpus(cluster: Cluster, hosts: Sequence[int], count: int, channels: int, *,
              affinity: bool) -> Ranks:
    """Choose and place ``count`` GPUs of ``hosts``; cached, since every draw needs the same."""
    known = _kept.setdefault(cluster, {})
    key = (tuple(hosts), count, channels, affinity)
    if key not in known:
        gpus = choose_gpus(cluster, hosts, count, affinity=affinity)
        known[key] = Ranks(gpus, common_group(cluster, gpus),
                           place(cluster, gpus, channels, affinity=affinity))
    return known[key]


def choose_gpus(cluster: Cluster, hosts: Sequence[int], count: int, *, affinity: bool) -> Ints:
    """The first ``count`` GPUs of ``hosts``, host by host, in the order of ranks."""
    chosen = np.asarray(hosts, np.int64)
    sizes = np.bincount(cluster.host, minlength=cluster.hosts)[chosen]
    chosen = chosen[: int(np.searchsorted(np.cumsum(sizes), count)) + 1]
    if affinity and len(chosen) > 2:
        fabric = cluster.fabric
        first_nic = np.searchsorted(fabric.endpoint_host, chosen)
        chosen = chosen[ring_order(fabric, first_nic)]
    starts = np.searchsorted(cluster.host, chosen)
    sizes = np.bincount(cluster.host, minlength=cluster.hosts)[chosen]
    gpus = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, sizes, strict=True)])
    return gpus[:count]


def common_group(cluster: Cluster, gpus: Ints) -> int:
    """The largest group of ``gpus`` that fills each of their hosts: a host, where all are alike."""
    return int(np.gcd.reduce(np.unique(cluster.host[gpus], return_counts=True)[1]))


def place(cluster: Cluster, gpus: Ints, channels: int, *, affinity: bool) -> Placement:
    """Lay rings and other plans over ``gpus``, which stand host by host."""
    same = np.tile(gpus, (channels, 1))
    first_host = cluster.host == cluster.host[gpus[0]]
    nics = np.stack([cluster.endpoint, cluster.vnic], axis=1)[first_host]
    rails = len(np.unique(nics, axis=0))
    sizes = np.unique(cluster.host[gpus], return_counts=True)[1]
    # NCCL spreads the pairs of a GPU over its own NICs; here each pair uses all of them.
    own = int(max(cluster.own_nics[gpus].max(), cluster.own_vnics[gpus].max()))
    exchanges = max(peer_channels(len(gpus), channels), min(own, channels))
    if rails == 1 or len(sizes) == 1 or len(set(sizes.tolist())) > 1:
        return Placement(same, same, exchanges)
    by_host = gpus.reshape(len(sizes), -1)
    local = by_host.shape[1]
    rings, others = [], []
    for channel in range(channels):
        turned = np.roll(by_host, -(channel * local // rails), axis=1)
        others.append(turned.ravel())
        if affinity:
            turned = turned.copy()
            turned[1::2] = turned[1::2, ::-1]
        rings.append(turned.ravel())
    return Placement(np.array(rings), np.array(others), exchanges)
