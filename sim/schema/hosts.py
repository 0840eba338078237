"""Hosts: groups of equal machines, their GPUs, the links inside a host, and the NICs."""

import math
from typing import Annotated, Any, Literal

from pydantic import Field, Strict, model_validator

from sim.schema.base import Count, Flag, Line, Model, Name, NoneWord
from sim.schema.gpu_kinds import KINDS, GpuKind, Reached, kind_of, memory_of, nvlink_of
from sim.schema.input_errors import Problem, show
from sim.schema.offload_keys import Disk
from sim.schema.units import ComputeRate, PositiveBytes, PositiveShare, Rate, Seconds

Bond = Literal["none", "lacp-2+3", "lacp-3+4", "dynamic"]
"""Sharing of a NIC's flows by its ports; the numbers are the layers with hashed headers."""
Driver = Literal["ena", "gve", "other"]
"""Linux's driver of a NIC; NCCL gives AWS's ENA and Google's gVNIC more sockets than others."""


Processors = Literal["intel", "amd", "other"]
"""Maker of a host's processors, as far as NCCL tells them apart."""


PCIE3_BPS = 96e9
"""Rate of a GPU's 16 lanes of PCIe 3.0 each way, beside packet headers."""


SOCKET_BPS = (80e9, 128e9, 176e9)
"""Between the sockets of hosts of PCIe 3.0, 4.0 and 5.0; see `HostGroup.socket_link`."""
MEMORY_BPS = (1024e9, 1638.4e9, 2457.6e9)
"""Of a socket's memory in hosts of PCIe 3.0, 4.0 and 5.0, by data sheets: Intel's Xeon Scalable of
2017 and 2019 with six channels of DDR4-2666; AMD's EPYC 7002 and 7003 and Intel's Xeon of 2021
with eight of DDR4-3200; Intel's Xeon of 2023 with eight of DDR5-4800."""


class Gpus(Model):
    """The GPUs of one host."""

    count: Annotated[Count, Field(le=64)]
    """GPUs per host."""
    model: Line
    """Name for the reader, e.g. V100."""
    effective: ComputeRate | None = None
    """Sustained FLOP/s on the workload's FLOPs as counted for direct algorithms."""
    samples_per_s: Annotated[float, Strict(), Field(ge=1e-6, le=1e15)] | None = None
    """Instead of it: samples/s of the file's workload on one GPU alone, as a framework prints."""
    utilisation: PositiveShare | None = None
    """Instead of both, for a model with a known data sheet: the share of the sheet's FLOP/s that
    matrix products reach, beside which kernels are bound by memory; where nothing is given, 0.73 of
    an A100's and 0.6 of others'."""
    memory: PositiveBytes | None = None
    """Memory of a GPU; that of its model where not given, and no limit where that is not known."""
    memory_rate: Rate | None = None
    """Rate of that memory, which bounds norms, sums and the like; that of its model where not
    given."""

    @model_validator(mode="after")
    def _one_speed(self) -> "Gpus":
        given = [key for key in ("effective", "samples_per_s", "utilisation")
                 if getattr(self, key) is not None]
        if len(given) > 1:
            raise Problem(f"has both {given[0]} and {given[1]}", allowed="one of the two")
        if given in ([], ["utilisation"]) and self.kind is None:
            raise Problem(f"has neither effective nor samples_per_s, and {show(self.model)} is no "
                          "model whose data sheet is known", found=self.model, names=KINDS,
                          allowed="one of the two, e.g. effective: 23.4TFLOPS, or a model among "
                          + ", ".join(KINDS))
        if self.memory_rate is not None and given not in ([], ["utilisation"]):
            raise Problem(f"has no effect beside {given[0]}, which is the speed of all kernels",
                          path=("memory_rate",), at_key=True, allowed=f"no {given[0]}")
        return self

    @property
    def kind(self) -> GpuKind | None:
        """Its data sheet, if that is known."""
        return kind_of(self.model)

    @property
    def memory_bytes(self) -> int | None:
        """Memory of a GPU, given or of its model; None if it is not known."""
        return memory_of(self.model) if self.memory is None else self.memory

    def peak(self, precision: str) -> float | None:
        """FLOP/s of the data sheet at a precision; None if they are not known."""
        kind = self.kind
        return None if kind is None or precision not in kind.tflops else (
            kind.tflops[precision] * 1e12)

    def left_wide(self, precision: str) -> float:
        """How many times as long a product takes that a precision leaves in 16 bits.

        Above 1 for fp8 alone, and where a data sheet gives the speed.
        """
        narrow, wide = self.peak(precision), self.peak("bf16")
        if precision != "fp8" or narrow is None or wide is None or math.isinf(self.moved):
            return 1.0
        return narrow / wide

    @property
    def moved(self) -> float:
        """Bytes/s at which its memory bounds kernels; infinite where a speed of all is given."""
        kind = self.kind
        if kind is None or self.effective is not None or self.samples_per_s is not None:
            return math.inf
        if self.memory_rate is not None:
            return self.memory_rate / 8
        return kind.moved_gbs(self.memory_bytes) * 1e9

    @property
    def reached(self) -> Reached | None:
        """The share of its data sheet that is assumed of it; None where the file gives a speed."""
        given = (self.effective, self.samples_per_s, self.utilisation)
        kind = self.kind
        return kind.reached if kind is not None and given == (None, None, None) else None

    def sustained(self, precision: str) -> float | None:
        """FLOP/s of its kernels, given or of the data sheet; None where samples/s are given."""
        peak, kind = self.peak(precision), self.kind
        if self.effective is not None or peak is None or kind is None:
            return self.effective
        if self.samples_per_s is not None:
            return None
        return peak * (kind.reached.value if self.utilisation is None else self.utilisation)


class Link(Model):
    """A link inside the host; ``rate`` is per GPU and direction."""

    rate: Rate
    """Bits/s per GPU and direction."""
    latency: Seconds = 1e-6
    """Time one way."""


def _nvlink(given: dict[str, Any]) -> Link | None:
    """The GPU fabric of a host group that does not name it, by the keys before it."""
    known = nvlink_of(given["gpus"].model) if "gpus" in given else None
    if known is None or not known[0]:
        return None
    return Link.model_construct(rate=known[0] * 8e9, latency=known[1])


class Nic(Model):
    """``count`` equal NICs, named ``<name>0``, ``<name>1`` ..."""

    name: Name
    """Name without the index."""
    count: Annotated[Count, Field(le=64)] = 1
    """NICs of this kind per host."""
    rate: Rate
    """Line rate of each port."""
    ports: Annotated[Count, Field(le=8)] = 1
    """Ports of each NIC; they form one bond."""
    bond: Bond = "none"
    """How the ports share the flows."""
    driver: Driver = "other"
    """Its kind, which decides NCCL's helper threads and sockets: AWS's ENA, Google's gVNIC (gve),
    or any other, as a pod's or container's own interface (veth) is on any cloud: NCCL finds no
    vendor there. Where a file with a vpc does not give it, intervals draw all three."""
    ring: Annotated[Count, Field(ge=16, le=32768)] = 1024
    """Frames that a process may have at a NIC at once, at fidelity packet; 1,024 is the default of
    Linux's mlx5 and ice drivers."""


Places = Annotated[tuple[Annotated[int, Strict(), Field(ge=0, le=63)], ...],
                   Field(min_length=1, max_length=64)]
"""A place for each device, in the order of the file."""


class Affinity(Model):
    """Where the GPUs and NICs of a host sit; what is left out is spread evenly."""

    gpu_nodes: Places | None = None
    """NUMA node of each GPU."""
    nic_nodes: Places | None = None
    """NUMA node of each NIC."""
    gpu_switches: Places | None = None
    """PCIe switch of each GPU."""
    nic_switches: Places | None = None
    """PCIe switch of each NIC."""
    gpu_nics: Places | None = None
    """NIC that each GPU's traffic takes; where not given, the nearest, as NCCL chooses: behind the
    GPU's switch, else on its node, else any."""


class HostGroup(Model):
    """``count`` equal hosts, named ``<name>-0``, ``<name>-1`` ..."""

    name: Name
    """Name without the index."""
    count: Annotated[Count, Field(le=65536)]
    """Hosts in the group."""
    gpus: Gpus
    """GPUs of each host."""
    nvlink: Annotated[Link | None, NoneWord()] = Field(default_factory=_nvlink)
    """The GPU fabric inside the host, or none where GPUs meet over PCIe only; where not given, that
    of the GPU's model if it is sold in one form alone (V100, A100, H100, T4, L4 ...)."""
    pcie: Link | None = None
    """The path between a GPU and a NIC; where not given, PCIe 3.0 x16 (12GB/s, 1us), doubled for
    each generation that the fastest NIC needs, or a GPU's share of all NICs."""
    nics: Annotated[tuple[Nic, ...], Field(min_length=1, max_length=64)]
    """Network cards."""
    cores: Annotated[Count, Field(le=4096)] = 32
    """CPU cores of each host."""
    processors: Processors | None = None
    """Maker of its CPUs: beside AMD's NCCL counts twice the time for a step of a ring between
    hosts, and another rate for LL; where not given, as in NVIDIA's own hosts, amd beside A100 and
    else intel."""
    numa_nodes: Annotated[Count, Field(le=64)] = 2
    """NUMA nodes of each host, over which GPUs and NICs are spread evenly."""
    affinity: Affinity | None = None
    """Where GPUs and NICs sit, and which take which; where not given, each GPU is on the NUMA node
    of its NIC."""
    numa_link: Link | None = None
    """Link between a NUMA node and the others, each way: GPUs that affinity puts on another node
    than their NIC pay it, and GPUs without NVLink on different nodes. Where not given, what NCCL
    takes for the CPUs of the generation of pcie: 10GB/s (3.0), 16GB/s (4.0) or 22GB/s
    (5.0), 0.1us."""
    memory: Rate | None = None
    """Memory bandwidth of one NUMA node, as data sheets have it; where not given, what CPUs of the
    generation of pcie have: 128GB/s (3.0, six channels of DDR4-2666), 205GB/s (4.0, eight of
    DDR4-3200) or 307GB/s (5.0, eight of DDR5-4800)."""
    ram: PositiveBytes | None = None
    """Memory of each host that may hold a model's states (offload); its GPUs share it."""
    disk: Disk | None = None
    """A disk of each host that may hold them, too."""
    pcie_switches: Annotated[Count, Field(le=64)] | None = None
    """PCIe switches of each host, over which GPUs and NICs are spread evenly, each with one uplink
    as fast as a GPU's path; where not given, every device has a path of its own."""
    peer_access: Flag = True
    """Whether GPUs without NVLink reach each other's memory; else they meet in the host's."""

    @property
    def socket_link(self) -> Link:
        """Link between a NUMA node and the others, given or by default.

        SKL_QPI_BW, AMD_BW and SRP_QPI_BW of src/graph/topo.h, NVIDIA/nccl 2.22.
        """
        if self.numa_link is not None:
            return self.numa_link
        return Link.model_construct(rate=SOCKET_BPS[self._pcie_generation], latency=0.1e-6)

    @property
    def memory_rate(self) -> float:
        """Memory bandwidth of one NUMA node in bits/s, given or by default."""
        return MEMORY_BPS[self._pcie_generation] if self.memory is None else self.memory

    @property
    def _pcie_generation(self) -> int:
        """0 to 2: PCIe 3.0 to 5.0."""
        return min(round(math.log2(max(self.pcie_link.rate / PCIE3_BPS, 1.0))), 2)

    @property
    def pcie_link(self) -> Link:
        """The path between a GPU and a NIC, given or by default."""
        if self.pcie is not None:
            return self.pcie
        # 16 lanes carry 12 to 13 GB/s of payload in generation 3; a port of 100 Gb/s is one of it.
        share = sum(nic.rate * nic.count for nic in self.nics) / self.gpus.count
        fastest = max(share, *(nic.rate for nic in self.nics))
        generations = max(0, math.ceil(math.log2(fastest / 100e9)))
        return Link.model_construct(rate=PCIE3_BPS * 2**generations, latency=1e-6)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the group's hosts."""
        return tuple(f"{self.name}-{index}" for index in range(self.count))

    @property
    def nic_names(self) -> tuple[str, ...]:
        """Names of a host's NICs, ``eth0`` ..., in the order of the file."""
        return tuple(f"{nic.name}{index}" for nic in self.nics for index in range(nic.count))

    @property
    def nic_ports(self) -> tuple[int, ...]:
        """Ports of each of `nic_names`."""
        return tuple(nic.ports for nic in self.nics for _ in range(nic.count))
