"""Input files of ``harp plan``: `load_job` and `load_rates`.

The topology describes the cluster; the job gives the addresses of its NICs, the pairs of ranks that
exchange data, and the UDP ports. Rates are those of other traffic on the links, for ``harp plan
--around``. Errors are those of topology files: one sentence with a position.
"""

from dataclasses import replace
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Strict, model_validator

from sim.schema.base import Count, Line, Model, one_of
from sim.schema.input_errors import Problem, show, unknown
from sim.schema.load import load
from sim.schema.source import Source
from sim.schema.topology_model import Topology
from sim.schema.units import RATE, Seconds


class LinkRates(Model):
    """Traffic that is not the job's, as a monitor of the switches measures it."""

    rates: Annotated[dict[Line, Annotated[float, replace(RATE, zero=True)]], Field(min_length=1)]
    """Rate by link: leaf0->spine1; of several cables between the same two each has it."""


def load_rates(path: Path) -> dict[str, float]:
    """Read and check a file; raises TopologyError."""
    return Source.read(path).validate(LinkRates).rates


BROADCAST = IPv4Address("255.255.255.255")


def _ipv4(text: str) -> str:
    try:
        known = IPv4Address(text)
    except AddressValueError as error:
        raise Problem(f"{show(text)} is no IPv4 address", found=text,
                      allowed="an address such as 10.0.0.1") from error
    if known.is_multicast or known.is_unspecified or known == BROADCAST:
        raise Problem(f"{text} is the address of no host", found=text,
                      allowed="an address of one NIC, such as 10.0.0.1")
    return str(known)


Address = Annotated[str, AfterValidator(_ipv4)]
"""IPv4 address of a NIC."""
UdpPort = Annotated[int, Strict(), Field(ge=1, le=65535)]
"""A UDP port."""
RankNumber = Annotated[int, Strict(), Field(ge=0, le=1_000_000)]
"""A rank; GPUs are numbered host by host."""
GpuNumber = Annotated[int, Strict(), Field(ge=0, le=1023)]
"""A GPU of a host."""
Seed = Annotated[int, Strict(), Field(ge=0, lt=2**32)]
"""Start value of a switch's hash."""


class Pair(Model):
    """A rank that sends to another."""

    sender: RankNumber = Field(alias="from")
    """The rank that sends."""
    receiver: RankNumber = Field(alias="to")
    """The rank that it sends to."""


class Ports(Model):
    """UDP or TCP ports that the job may use on its hosts."""

    listen: UdpPort = 61000
    """The first on which ranks listen; those up to first_source may follow."""
    first_source: UdpPort = 61256
    """First source port of connections."""
    last_source: UdpPort = 65535
    """The last of them."""

    @model_validator(mode="after")
    def _in_order(self) -> "Ports":
        if not self.listen < self.first_source <= self.last_source:
            raise Problem("ports out of order", allowed="listen < first_source <= last_source")
        return self


class PlannedJob(Model):
    """The traffic to plan."""

    topology: Line
    """Topology file, from the folder of this one on."""
    addresses: Annotated[dict[str, Address], Field(min_length=1)]
    """Address of each NIC, named as host/nic: h-0/eth0."""
    hosts: Annotated[tuple[Line, ...], Field(min_length=1)] | None = None
    """The hosts that are the job's, in the order of their ranks; default: all of the topology's."""
    gpus: Annotated[tuple[GpuNumber, ...], Field(min_length=1)] | None = None
    """The GPUs of each of these hosts that are the job's, counted from 0; default: all."""
    order: Literal["given", "near"] = "given"
    """Order of hosts, and with it the ranks': the topology's, or such that a ring over them leaves
    each pod and each leaf once."""
    flows: Annotated[Literal["ring", "alltoall"] | Annotated[tuple[Pair, ...], Field(min_length=1)],
                     one_of("ring, alltoall, or a list of pairs {from: 0, to: 1}", "ring",
                            "alltoall")] = "ring"
    """Pattern of sends: each rank to the next, each to each, or pairs."""
    connections: Annotated[Count, Field(le=64)] = 1
    """Connections of each pair; NCCL makes one for each channel."""
    paths: Annotated[Count, Field(le=64)] = 1
    """Paths of each connection (HARP_PATHS)."""
    engines: Annotated[Count, Field(le=16)] = 1
    """Engines of each NIC (HARP_ENGINES)."""
    protocol: Literal["udp", "tcp"] = "udp"
    """Protocol of its connections, which switches hash: HARP's own packets in UDP, or kernel TCP
    (HARP_PORT)."""
    ports: Ports = Ports()
    """UDP or TCP ports that the job may use."""
    maps: tuple[Line, ...] = ()
    """Maps of ``harp probe``, from the folder of this file on: discovered paths, instead of
    the topology's hash."""
    routers: dict[Address, str] = Field(default_factory=dict)
    """Switch of each address in the maps."""
    latencies: tuple[Line, ...] = ()
    """Files of ``harp probe --latency``, from the folder of this file on, one of each host: order
    near goes by these instead of the topology's fabric."""
    tuning: Line | None = None
    """Table of sim.tune, from the folder of this file on, that becomes part of the plan."""
    latency: Seconds | None = None
    """Latency of the network that NCCL should assume (``harp plan --files``), instead of its
    own figures."""
    seeds: dict[str, Seed] = Field(default_factory=dict)
    """Seed of each switch's hash, by name, where they are known (fib_multipath_hash_seed of a Linux
    router); others are drawn as the simulator draws them."""


def load_job(path: Path) -> tuple[PlannedJob, Topology]:
    """Read and check a job and the topology that it names; raises TopologyError."""
    source = Source.read(path)
    job = source.validate(PlannedJob)
    topology = load(path.parent / job.topology)
    found = list(_misfits(job, topology))
    if found:
        raise source.first(found)
    return job, topology


def _misfits(job: PlannedJob, topology: Topology) -> list[Problem]:
    """The job's words on NICs and ranks that the topology does not have."""
    nics = [f"{host}/{nic}" for group in topology.hosts for host in group.names
            for nic in group.nic_names]
    found = [unknown("NIC of the topology", name, nics, ("addresses", name))
             for name in job.addresses if name not in nics]
    missing = [nic for nic in nics if nic not in job.addresses]
    if missing and not found:
        found.append(Problem(f"{missing[0]} has no address", path=("addresses",),
                             allowed=f"one for each of {len(nics)} NICs"))
    seen: dict[str, str] = {}
    for name, address in job.addresses.items():
        if address in seen:
            found.append(Problem(f"{address} is {seen[address]}'s already",
                                 path=("addresses", name), found=address,
                                 allowed="an address of its own for each NIC"))
        seen.setdefault(address, name)
    found += _ranks_misfit(job, topology)
    bonded = next((group for group in topology.hosts
                   if any(nic.ports > 1 and (nic.bond == "dynamic" or job.maps)
                          for nic in group.nics)), None)
    if bonded is not None:
        found.append(Problem(
            f"NICs of {bonded.name} have several ports, among which no hash that is known chooses",
            path=("topology",), allowed="bonds of none, lacp-2+3 or lacp-3+4 and no maps, or NICs "
            "with one port each, which HARP_RAILS fuses"))
    return found


def _ranks_misfit(job: PlannedJob, topology: Topology) -> list[Problem]:
    """The job's words on hosts, GPUs and ranks that the topology does not have."""
    groups = {name: group for group in topology.hosts for name in group.names}
    hosts = list(groups) if job.hosts is None else job.hosts
    found = [unknown("host of the topology", name, list(groups), ("hosts", number))
             for number, name in enumerate(hosts) if name not in groups]
    found += [Problem(f"{name} is named twice", path=("hosts", number), found=name,
                      allowed="each host once")
              for number, name in enumerate(hosts) if name in hosts[:number]] if job.hosts else []
    if found:
        return found
    least = min(groups[name].gpus.count for name in hosts)
    found += [Problem(f"there is no GPU {gpu} on each host", path=("gpus", number), found=gpu,
                      allowed=f"0 to {least - 1}, each once")
              for number, gpu in enumerate(job.gpus or ())
              if gpu >= least or gpu in (job.gpus or ())[:number]]
    ranks = sum(len(job.gpus) if job.gpus else groups[name].gpus.count for name in hosts)
    for number, pair in enumerate(() if isinstance(job.flows, str) else job.flows):
        found += [Problem(f"there is no rank {rank}", path=("flows", number, end), found=rank,
                          allowed=f"0 to {ranks - 1}, the job's GPUs")
                  for end, rank in (("from", pair.sender), ("to", pair.receiver)) if rank >= ranks]
        if pair.sender == pair.receiver:
            found.append(Problem(f"rank {pair.sender} sends to itself", path=("flows", number),
                                 allowed="pairs of two ranks"))
    return found
