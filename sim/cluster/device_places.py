"""Places of a host's devices, and the NICs of each GPU.

By default GPUs and NICs are spread evenly over NUMA nodes, PCIe switches and one another, and every
GPU is on the node of its NIC. With the host's ``affinity`` a GPU takes the nearest NICs, as NCCL
chooses (ncclTopoGetLocalNet, NVIDIA/nccl src/graph/topo.cc): one behind its own PCIe switch, else
one of its NUMA node, else any. GPUs with the same nearest NICs share them evenly, in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.schema.hosts import Affinity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from sim.schema.hosts import HostGroup

    Ints = NDArray[np.int64]


class Devices(NamedTuple):
    """Devices of each GPU of a host, numbered within the host."""

    nic: Ints
    """First NIC of those that its traffic takes."""
    own_nics: Ints
    """Number of NICs from that one on that only this GPU takes, its channels in turn."""
    gpu_node: Ints
    """NUMA node of the GPU."""
    nic_node: Ints
    """NUMA node of its NIC, where the buffers of its traffic lie."""
    gpu_switch: Ints
    """PCIe switch of the GPU."""
    nic_switch: Ints
    """PCIe switch of its NIC."""


def place_devices(group: HostGroup) -> Devices:
    """Place the devices of a host of this group."""
    gpus, nics = group.gpus.count, len(group.nic_names)
    nodes, switches = group.numa_nodes, group.pcie_switches or 1
    given = group.affinity or Affinity()
    gpu_switch = _given(given.gpu_switches, gpus, switches)
    nic_switch = _given(given.nic_switches, nics, switches)
    nic_node = _given(given.nic_nodes, nics, nodes)
    if group.affinity is None:
        nic, own = _share(np.arange(nics), gpus)
        gpu_node = nic_node[nic]
    else:
        gpu_node = _given(given.gpu_nodes, gpus, nodes)
        far = 2 - (gpu_node[:, None] == nic_node)
        if group.pcie_switches is not None:
            far[gpu_switch[:, None] == nic_switch] = 0
        nic, own = _choose(given, far)
    return Devices(nic, own, gpu_node, nic_node[nic], gpu_switch, nic_switch[nic])


def _given(places: Sequence[int] | None, devices: int, parts: int) -> Ints:
    """Part of each device: as the file says, or spread evenly."""
    return np.arange(devices) * parts // devices if places is None else np.array(places, np.int64)


def _choose(given: Affinity, far: Ints) -> tuple[Ints, Ints]:
    """First NIC and number of NICs of each GPU; ``far[gpu, nic]`` says how far one is off."""
    gpus = len(far)
    if given.gpu_nics is not None:
        return np.array(given.gpu_nics, np.int64), np.ones(gpus, np.int64)
    nic, own = np.zeros(gpus, np.int64), np.ones(gpus, np.int64)
    nearest = far == far.min(axis=1, keepdims=True)
    for near in np.unique(nearest, axis=0):
        alike = np.flatnonzero((nearest == near).all(axis=1))
        nic[alike], own[alike] = _share(np.flatnonzero(near), len(alike))
    return nic, own


def _share(nics: Ints, gpus: int) -> tuple[Ints, Ints]:
    """First NIC and number of NICs of each of some GPUs, which share ``nics`` evenly."""
    ends = np.arange(gpus + 1) * len(nics) // gpus
    several = nics[-1] - nics[0] == len(nics) - 1  # else they do not stand in a row
    own = np.maximum(np.diff(ends), 1) if several else np.ones(gpus, np.int64)
    return nics[ends[:-1]], own
