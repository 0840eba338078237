"""Checks of a well-formed topology: references, sizes that fit, names used twice, the fabric.

Each check is a generator of Problems with paths from the top of the file. `check_fabric` checks
whether the fabric fits the hosts: sizes of a template, ends and reach of explicit links.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from sim.schema.gpu_kinds import NVLINK, nvlink_of
from sim.schema.hosts import HostGroup
from sim.schema.input_errors import Path, Problem, listing, show, unknown
from sim.schema.nccl_defaults import KERNEL_TCP, uses_sockets
from sim.schema.network_keys import Clos3, DualTor, Explicit, FabricLink, LeafSpine, Rail, Vpc
from sim.schema.offload_checks import check_offload
from sim.schema.parallel_checks import check_parallel
from sim.schema.parameters import FrameworkSet, Kind, StackSet, resolve, shipped
from sim.schema.scenario_keys import Expect, Scenario, Workload, link_ends
from sim.schema.size import check_flows, check_resources
from sim.schema.topology_model import Topology

Port = tuple[str, str, int]
"""Host, NIC, index of the port."""


def check_fabric(topology: Topology) -> Iterator[Problem]:
    """Every problem between the fabric and the hosts."""
    fabric = topology.fabric
    if isinstance(fabric, LeafSpine):
        yield from _at_most(topology, "leaves", fabric.leaves)
    elif isinstance(fabric, Clos3):
        yield from _clos3(topology, fabric)
    elif isinstance(fabric, Rail):
        yield from _rail(topology)
    elif isinstance(fabric, DualTor):
        yield from _at_most(topology, "pairs", fabric.pairs)
        yield from _dual_tor(topology)
    elif isinstance(fabric, Explicit):
        yield from _explicit(topology, fabric)


def _at_most(topology: Topology, key: str, count: int) -> Iterator[Problem]:
    hosts = len(topology.host_names)
    if count > hosts:
        yield Problem(f"{count} {key} for {hosts} hosts", path=("fabric", key), found=count,
                      allowed=f"at most {hosts}, so that each has a host")


def _clos3(topology: Topology, fabric: Clos3) -> Iterator[Problem]:
    hosts = len(topology.host_names)
    leaves = fabric.pods * fabric.leaves
    if leaves > hosts:
        yield Problem(f"{fabric.pods} pods of {fabric.leaves} leaves for {hosts} hosts",
                      path=("fabric", "leaves"), found=leaves,
                      allowed=f"at most {hosts} leaves in all, so that each has a host")
    if fabric.cores % fabric.aggs:
        yield Problem(f"{fabric.cores} cores do not divide among {fabric.aggs} aggs",
                      path=("fabric", "cores"), found=fabric.cores,
                      allowed=f"a multiple of {fabric.aggs}, one plane of cores for each agg")


def _rail(topology: Topology) -> Iterator[Problem]:
    wanted = len(topology.hosts[0].nic_names)
    for index, group in enumerate(topology.hosts):
        nics = len(group.nic_names)
        if nics != wanted:
            yield Problem(f"{nics} NICs where the first group has {wanted}",
                          path=("hosts", index, "nics"), found=nics,
                          allowed="as many on every host, one for each rail")


def _dual_tor(topology: Topology) -> Iterator[Problem]:
    for index, group in enumerate(topology.hosts):
        for position, nic in enumerate(group.nics):
            if nic.ports != 2:
                yield Problem(f"a NIC with {nic.ports} port{'s' if nic.ports > 1 else ''}",
                              path=("hosts", index, "nics", position), found=nic.ports,
                              allowed="ports: 2, one for each ToR of the pair")


def _explicit(topology: Topology, fabric: Explicit) -> Iterator[Problem]:
    ports = sum(group.count * sum(group.nic_ports) for group in topology.hosts)
    if ports > len(fabric.links):
        yield Problem(f"{ports} NIC ports but no more than {len(fabric.links)} cables", at_key=True,
                      path=("fabric", "links"), allowed="one cable for each port of each NIC")
    else:
        yield from _Cabling(topology, fabric).check()


class _Cabling:
    """The links of an explicit fabric, end by end."""

    def __init__(self, topology: Topology, fabric: Explicit) -> None:
        self._topology = topology
        self._fabric = fabric
        self._devices = {device.name: device.name for device in fabric.devices}
        self._hosts = dict.fromkeys(topology.host_names)
        self._ports: dict[Port, str] = {
            (host, nic, port): "" for group in topology.hosts for host in group.names
            for nic, ports in zip(group.nic_names, group.nic_ports, strict=True)
            for port in range(ports)}
        self._joined: set[frozenset[str]] = set()

    def check(self) -> Iterator[Problem]:
        """Yield dangling, doubled and missing cables, unreachable hosts and unknown faults."""
        problems = [*self._names(), *self._links()]
        yield from problems
        if not problems:
            bare = [port for port, device in self._ports.items() if not device]
            yield from self._bare(bare) if bare else (*self._reach(), *self._faults())

    def _names(self) -> Iterator[Problem]:
        seen: set[str] = set()
        for index, device in enumerate(self._fabric.devices):
            if device.name in seen or device.name in self._hosts:
                what = "device" if device.name in seen else "host"
                yield Problem(f"there is already a {what} {show(device.name)}",
                              path=("fabric", "devices", index, "name"), found=device.name,
                              allowed="a name of its own")
            seen.add(device.name)

    def _links(self) -> Iterator[Problem]:
        for index, link in enumerate(self._fabric.links):
            path: Path = ("fabric", "links", index)
            try:
                near = self._end(link.source, (*path, "from"))
                far = self._end(link.target, (*path, "to"))
            except Problem as problem:
                yield problem
            else:
                yield from self._pair(link, near, far, path)

    def _end(self, text: str, path: Path) -> str | Port:
        """Device or port that one end of a link names."""
        if text in self._devices:
            return text
        host, slash, rest = text.partition("/")
        nic, _, port = rest.partition(".")
        key = (host, nic, int(port or 0)) if (port or "0") in _PORT_NUMBERS else None
        if slash and key in self._ports:
            return key
        ends = [*self._devices, *self._endpoints(host)]
        raise Problem(f"{show(text)} is neither a device nor a host's port", path=path, found=text,
                      allowed=listing(ends), names=ends)

    def _endpoints(self, host: str) -> list[str]:
        host = host if host in self._hosts else next(iter(self._hosts))
        return [f"{owner}/{nic}.{port}" for owner, nic, port in self._ports if owner == host]

    def _pair(self, link: FabricLink, near: str | Port, far: str | Port,
              path: Path) -> Iterator[Problem]:
        if isinstance(near, tuple) and isinstance(far, tuple):
            yield Problem("a cable from host to host", path=path,
                          allowed="a device at one end at least")
        elif isinstance(near, tuple) or isinstance(far, tuple):
            port, device = (near, far) if isinstance(near, tuple) else (far, near)
            yield from self._host_link(link, port, str(device), path)  # type: ignore[arg-type]
        elif near == far:
            yield Problem(f"a cable from {show(near)} to itself", path=path, found=near,
                          allowed="two devices")
        else:
            self._joined.add(frozenset((near, far)))

    def _host_link(self, link: FabricLink, port: Port, device: str,
                   path: Path) -> Iterator[Problem]:
        if self._ports[port]:
            yield Problem(f"a second cable in port {_port_text(port)}", path=path,
                          allowed=f"one; it already leads to {self._ports[port]}")
        self._ports[port] = device
        for key in ("rate", "latency", "count"):
            if key in link.model_fields_set:
                yield Problem("is not for a host's cable", path=(*path, key), at_key=True,
                              allowed="from and to; the NIC has the rate, the fabric the latency")

    def _bare(self, ports: list[Port]) -> Iterator[Problem]:
        rest = f" and {len(ports) - 1} more" if len(ports) > 1 else ""
        yield Problem(f"no cable in port {_port_text(ports[0])}{rest}", path=("fabric", "links"),
                      at_key=True, allowed="one cable for each port of each NIC")

    def _reach(self) -> Iterator[Problem]:
        """Hosts do not forward: two of them meet only where devices join a port of each."""
        island = _islands(self._devices, self._joined)
        at: dict[str, set[str]] = {host: set() for host in self._hosts}
        for (host, _, _), device in self._ports.items():
            at[host].add(island[device])
        first = next(iter(at))
        for host, islands in at.items():
            if not islands & at[first]:
                yield Problem(f"host {host} cannot reach host {first}", path=("fabric", "links"),
                              at_key=True, found=host,
                              allowed="links that join all hosts over devices")
                return

    def _faults(self) -> Iterator[Problem]:
        beside: dict[str, list[str]] = {device: [] for device in self._devices}
        for near, far in sorted(map(sorted, self._joined)):
            beside[near].append(far)
            beside[far].append(near)
        for (host, nic, _), device in self._ports.items():
            beside[device].append(f"{host}/{nic}")
            beside.setdefault(f"{host}/{nic}", []).append(device)
        for index, fault in enumerate(self._topology.faults):
            if fault.kind == "slow-gpu":
                continue
            path = ("faults", index, "link")
            try:
                near, far, _ = link_ends(fault.link, beside)
            except Problem as problem:
                yield problem.under(*path)
                continue
            if far not in beside[near]:
                yield Problem(f"no cable joins {near} and {far}", path=path, found=fault.link,
                              allowed=f"{near} joined with {listing(beside[near])}")


_PORT_NUMBERS = frozenset(map(str, range(8)))


def _port_text(port: Port) -> str:
    return f"{port[0]}/{port[1]}.{port[2]}"


def _islands(devices: dict[str, str], joined: set[frozenset[str]]) -> dict[str, str]:
    """Name a representative of each device's connected component (union-find, halving paths)."""
    parent = dict(devices)

    def root(node: str) -> str:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for near, far in joined:
        parent[root(near)] = root(far)
    return {device: root(device) for device in devices}


DEFAULT_INTRA_SIZE = 8
"""LIGHT_INTRA_SIZE where a file leaves it out, as Tencent's TACO Train documentation has it."""

MAX_HOSTS = 65_536
"""Hosts of a cluster, four times the largest that is shipped."""


def check(topology: Topology) -> Iterator[Problem]:
    """Every problem of sense, in no particular order."""
    hosts = sum(group.count for group in topology.hosts)
    if hosts > MAX_HOSTS:
        yield Problem(f"{hosts} hosts", path=("hosts",), found=hosts,
                      allowed=f"at most {MAX_HOSTS}")
        return
    too_large = list(check_resources(topology))
    yield from too_large
    parts = (_names, _hosts, _affinity, _mtu, _buffers, _vpc, _sets, _workloads, _jobs,
             _background, _scenarios, _faults, _prices, _expect)
    found = [problem for part in parts for problem in part(topology)]
    if not too_large:
        found += check_fabric(topology)
    yield from found or (*_kernel_tcp(topology), *check_flows(topology))


def _twice(what: str, names: Iterable[str], path: Path, key: str = "name") -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if name in first:
            where = (*path, index, key) if key else (*path, index)
            yield Problem(f"{what} {show(name)} stands twice", path=where, found=name,
                          allowed=f"once; the first is at index {first[name]}")
        first.setdefault(name, index)


def _names(topology: Topology) -> Iterator[Problem]:
    for what, key in (("host group", "hosts"), ("scenario", "scenarios"), ("fault", "faults"),
                      ("job", "jobs"), ("background", "background")):
        yield from _twice(what, (item.name for item in getattr(topology, key)), (key,))


def _hosts(topology: Topology) -> Iterator[Problem]:
    for index, group in enumerate(topology.hosts):
        gpu = group.gpus.model
        if "nvlink" not in group.model_fields_set and group.gpus.count > 1 and (
                nvlink_of(gpu) is None):
            known = group.gpus.kind is not None
            why = f"GPUs {show(gpu)} are " + ("sold with and without it" if known else "not known")
            yield Problem(f"is missing, and {why}", path=("hosts", index, "nvlink"), found=gpu,
                          names=() if known else NVLINK,
                          allowed="none, or {rate: ...GB/s, latency: ...us} as one GPU has it")
        path = ("hosts", index, "nics")
        seen: set[str] = set()
        for position, nic in enumerate(group.nics):
            names = {f"{nic.name}{number}" for number in range(nic.count)}
            if both := sorted(seen & names):
                yield Problem(f"NIC {both[0]} stands twice", path=(*path, position, "name"),
                              found=nic.name, allowed="names that differ once they are numbered")
            seen |= names
            if nic.bond != "none" and nic.ports == 1:
                yield Problem(f"a bond {show(nic.bond)} of one port", found=nic.bond,
                              path=(*path, position, "bond"),
                              allowed="ports: 2 or more beside it, or none")
            unsaid = nic.ports > 1 and "bond" not in nic.model_fields_set
            if unsaid and any(scenario.bond is None for scenario in topology.scenarios):
                yield Problem(f"{nic.ports} ports and no bond, so only one port is used",
                              path=(*path, position, "ports"), found=nic.ports,
                              allowed="a bond beside it, lacp-2+3, lacp-3+4 or dynamic; or none, "
                              "to say that one is enough")


def _affinity(topology: Topology) -> Iterator[Problem]:
    for index, group in enumerate(topology.hosts):
        if group.affinity is not None:
            for problem in _places(group):
                yield problem.under("hosts", index, "affinity")


def _places(group: HostGroup) -> Iterator[Problem]:
    gpus, nics = group.gpus.count, len(group.nic_names)
    devices = {"gpu": (gpus, "GPUs"), "nic": (nics, "NICs")}
    parts = {"nodes": (group.numa_nodes, "numa_nodes"), "nics": (nics, "nics"),
             "switches": (group.pcie_switches or 0, "pcie_switches")}
    for key, places in group.affinity or ():
        if places is None:
            continue
        (count, what), (most, key_of) = (found[word] for found, word in zip(
            (devices, parts), key.split("_"), strict=True))
        if len(places) != count:
            yield Problem(f"{len(places)} places for {count} {what}", path=(key,),
                          allowed=f"{count}, one for each")
        for number, place in enumerate(places):
            if place >= most:
                yield Problem(f"{place} is too large: {key_of} gives {most}", path=(key, number),
                              found=place, allowed=f"0 to {most - 1}" if most else
                              f"{key_of} beside affinity")


def _mtu(topology: Topology) -> Iterator[Problem]:
    given = {("fabric", "mtu"): topology.fabric.mtu,
             ("vpc", "mtu"): topology.vpc.mtu if topology.vpc else None}
    for path, mtu in given.items():
        if mtu is not None and not 256 <= mtu <= 65535:
            yield Problem(f"an MTU of {mtu} B", path=path, found=mtu, allowed="256B to 65535B")


def _buffers(topology: Topology) -> Iterator[Problem]:
    """Two packets must find room at a port of a switch where nothing else waits."""
    switch, mtu = topology.fabric.switch, topology.fabric.mtu
    least = math.ceil(2 * mtu / min(1.0, switch.alpha))
    if switch.buffer < least:
        yield Problem(f"a buffer of {switch.buffer} B for packets of {mtu} B",
                      path=("fabric", "switch", "buffer"), found=switch.buffer,
                      allowed=f"at least {least}B with an alpha of {switch.alpha:g}")


def _vpc(topology: Topology) -> Iterator[Problem]:
    vpc = topology.vpc
    if vpc is None:
        return
    if vpc.burst and vpc.host_rate is None:
        yield Problem("a burst without a rate that it exceeds", path=("vpc", "burst"),
                      allowed="host_rate beside it")
    elif vpc.burst and vpc.host_rate and vpc.burst.rate <= vpc.host_rate:
        yield Problem("the burst is no faster than host_rate", path=("vpc", "burst", "rate"),
                      found=vpc.burst.rate, allowed="a rate above host_rate")
    if vpc.police is not None:
        yield from _police(vpc, topology.fabric.mtu if vpc.mtu is None else vpc.mtu)


def _police(vpc: Vpc, mtu: int) -> Iterator[Problem]:
    """A policer needs a cap, and its bucket a packet's worth of tokens."""
    caps = [rate for rate in (vpc.vnic_rate, vpc.host_rate, vpc.flow_rate) if rate is not None]
    caps += [vpc.packet_rate * 8 * mtu] if vpc.packet_rate is not None else []
    if not caps or vpc.burst is not None:
        yield Problem("a policer " + ("beside a burst" if vpc.burst else "without a cap"),
                      path=("vpc", "police"), at_key=True, allowed="one of the two" if vpc.burst
                      else "vnic_rate, host_rate, flow_rate or packet_rate beside it")
    elif vpc.police is not None and vpc.police.burst * min(caps) / 8 < 2 * mtu:
        least_us = math.ceil(2 * mtu * 8 / min(caps) * 1e6)
        yield Problem(f"a policer whose bucket holds less than two packets of {mtu} B",
                      path=("vpc", "police", "burst"), found=vpc.police.burst,
                      allowed=f"at least {least_us}us")


def _sets(topology: Topology) -> Iterator[Problem]:
    yield from _resolved(topology.stacks, "stacks", StackSet)
    yield from _resolved(topology.frameworks, "frameworks", FrameworkSet)


def _resolved(sets: Mapping[str, Any], kind: Kind, model: type[Any]) -> Iterator[Problem]:
    for name in sets:
        try:
            resolve(name, sets, kind, model)
        except Problem as problem:  # noqa: PERF203  (a handful of sets)
            yield problem


def _known(what: str, found: str, names: Collection[str], path: Path) -> Iterator[Problem]:
    if found not in names:
        yield unknown(what, found, names, path)


def _frameworks(topology: Topology) -> list[str]:
    return sorted({*shipped("frameworks"), *topology.frameworks})


def _workloads(topology: Topology) -> Iterator[Problem]:
    yield from _workload(topology, topology.workload, ("workload",))
    for index, job in enumerate(topology.jobs):
        if job.workload is not None:
            yield from _workload(topology, job.workload, ("jobs", index, "workload"))


def _workload(topology: Topology, workload: Workload, path: Path) -> Iterator[Problem]:
    from sim.workloads.models import NAMES

    if workload.trace is not None:
        yield from _traced(topology, path)
        return
    if isinstance(workload.model, str) and workload.model not in NAMES:
        yield unknown("model", workload.model, NAMES, (*path, "model"))
    else:
        try:
            _ = workload.network
        except ValueError as error:
            given = workload.sequence is not None
            shorter = ", or a shorter one" if "positions" in str(error) else ""
            yield Problem(str(error), path=(*path, "sequence") if given else (*path, "model"),
                          found=workload.sequence, allowed=f"no sequence{shorter}" if given
                          else "e.g. sequence: 2048")
        else:
            yield from _recompute(workload, path)
    yield from _precision(topology, workload, path)
    yield from _known("framework", workload.framework, _frameworks(topology), (*path, "framework"))


def _traced(topology: Topology, path: Path) -> Iterator[Problem]:
    """Traces are of the whole file, and of GPUs whose rate needs no model."""
    if path[0] == "jobs" or topology.jobs:
        yield Problem("traces run alone", path=(*path, "trace"), at_key=True,
                      allowed="a file without jobs")
    for index, group in enumerate(topology.hosts):
        if group.gpus.samples_per_s is not None:
            yield Problem("has no meaning for traces", path=("hosts", index, "gpus",
                          "samples_per_s"), at_key=True, allowed="model or effective")


def _recompute(workload: Workload, path: Path) -> Iterator[Problem]:
    """Blocks can be computed again where there are some."""
    network = workload.network
    if workload.recompute != "none" and not network.activations:
        yield Problem(f"model {network.name} is no row of like transformer blocks",
                      path=(*path, "recompute"), found=workload.recompute,
                      allowed="none, or a model such as gpt2, bert-large or llama2-7b")


def _precision(topology: Topology, workload: Workload, path: Path) -> Iterator[Problem]:
    """A GPU without a speed of its own has one at this precision."""
    for group in topology.hosts:
        kind = group.gpus.kind
        if kind is not None and workload.precision not in kind.tflops and (
                group.gpus.effective is None and group.gpus.samples_per_s is None):
            yield Problem(f"{kind.name} has no {workload.precision}",
                          path=(*path, "precision"), found=workload.precision,
                          allowed=", ".join(kind.tflops) + f"; or {group.name}'s gpus.effective")
            return


def _jobs(topology: Topology) -> Iterator[Problem]:
    hosts: dict[str, list[str]] = {name: [] for name in topology.host_names}
    for index, job in enumerate(topology.jobs):
        for position, name in enumerate(job.hosts):
            path = ("jobs", index, "hosts", position)
            if name not in hosts:
                yield unknown("host", name, hosts, path)
                continue
            if others := [other for other in hosts[name] if _meet(topology, other, job.name)]:
                yield Problem(f"host {show(name)} already runs job {show(others[0])}", path=path,
                              found=name, allowed="a host of its own for each job")
            hosts[name].append(job.name)


def _meet(topology: Topology, one: str, other: str) -> bool:
    """Whether two jobs, or a job and itself, ever run at once."""
    return one == other or any(scenario.jobs is None or {one, other} <= set(scenario.jobs)
                               for scenario in topology.scenarios)


def _scenarios(topology: Topology) -> Iterator[Problem]:
    stacks = sorted({*shipped("stacks"), *topology.stacks})
    faults = [fault.name for fault in topology.faults]
    bonded = any(nic.ports > 1 for group in topology.hosts for nic in group.nics)
    for index, scenario in enumerate(topology.scenarios):
        path = ("scenarios", index)
        yield from _known("stack", scenario.stack, stacks, (*path, "stack"))
        if scenario.framework is not None:
            yield from _known("framework", scenario.framework, _frameworks(topology),
                              (*path, "framework"))
        jobs = scenario.jobs or ()
        yield from _twice("job", jobs, (*path, "jobs"), key="")
        for position, job in enumerate(jobs):
            yield from _known("job", job, [each.name for each in topology.jobs],
                              (*path, "jobs", position))
        for position, fault in enumerate(scenario.faults):
            yield from _known("fault", fault, faults, (*path, "faults", position))
        yield from _twice("background", scenario.background, (*path, "background"), key="")
        for position, name in enumerate(scenario.background):
            yield from _known("background", name, [each.name for each in topology.background],
                              (*path, "background", position))
        yield from check_parallel(topology, scenario, path)
        yield from check_offload(topology, scenario, path)
        if scenario.bond not in (None, "none") and not bonded:
            yield Problem(f"a bond {show(scenario.bond)} where no NIC has two ports",
                          path=(*path, "bond"), found=scenario.bond,
                          allowed="NICs with ports: 2 or more, or no bond here")
        yield from _gpu_counts(topology, scenario, path)
        yield from _groups(topology, scenario, path)


_OF_KERNEL_TCP = {"helpers": "others have threads", "congestion": "others have their own"}


def _kernel_tcp(topology: Topology) -> Iterator[Problem]:
    """Keys of kernel TCP beside another stack, in a file that makes sense otherwise."""
    for index, scenario in enumerate(topology.scenarios):
        if uses_sockets(scenario.stack, topology.stacks):
            continue
        for key, others in _OF_KERNEL_TCP.items():
            if getattr(scenario, key) is not None:
                yield Problem(f"has no effect on stack {show(scenario.stack)}", at_key=True,
                              path=("scenarios", index, key),
                              allowed=f"a stack that is or builds on {KERNEL_TCP}; {others}")


def _gpu_counts(topology: Topology, scenario: Scenario, path: Path) -> Iterator[Problem]:
    if scenario.gpus is None:
        return
    if topology.jobs:
        yield Problem("has no meaning beside jobs", path=(*path, "gpus"), at_key=True,
                      allowed="no gpus, for each job uses all GPUs of its hosts")
        return
    yield from _twice("number of GPUs", map(str, scenario.gpus), (*path, "gpus"), key="")
    hosts = topology.gpu_totals
    for position, gpus in enumerate(scenario.gpus):
        above = bisect_left(hosts, gpus)
        if gpus <= hosts[0] or (above < len(hosts) and hosts[above] == gpus):
            continue
        says = (f"{gpus} GPUs are more than the cluster has" if gpus > hosts[-1]
                else f"{gpus} GPUs are not a whole number of hosts")
        more = ", ".join(map(str, hosts[1:])) if len(hosts) < 6 else f"{hosts[1]} ... {hosts[-1]}"
        yield Problem(says, path=(*path, "gpus", position), found=gpus,
                      allowed=f"1 to {hosts[0]}" + (f", or whole hosts: {more}" if more else ""))


def _groups(topology: Topology, scenario: Scenario, path: Path) -> Iterator[Problem]:
    """Check that groups divide the GPUs; where there are fewer GPUs, they are one group."""
    light = scenario.light_settings
    given = "LIGHT_INTRA_SIZE" in light
    two_d = scenario.allreduce == "light" and light.get("LIGHT_2D_ALLREDUCE")
    if not two_d and not (given and scenario.allreduce == "2d"):
        return
    size = int(light.get("LIGHT_INTRA_SIZE", DEFAULT_INTRA_SIZE))
    where = "LIGHT_INTRA_SIZE" if given else "LIGHT_2D_ALLREDUCE"
    for gpus in sorted({gpus for _, gpus in topology.rows(scenario)}):
        if gpus > size and gpus % size:
            default = "" if given else " (the default LIGHT_INTRA_SIZE)"
            sizes = [str(n) for n in range(1, min(gpus, 64) + 1) if gpus % n == 0]
            yield Problem(f"groups of {size}{default} do not divide {gpus} GPUs",
                          path=(*path, "light", where), found=size,
                          allowed=f"a LIGHT_INTRA_SIZE among {listing(sizes)}")
            return


def _background(topology: Topology) -> Iterator[Problem]:
    """Background traffic goes between hosts that there are, and from each to another one."""
    for index, source in enumerate(topology.background):
        for key in ("senders", "receivers"):
            path = ("background", index, key)
            yield from _twice("host", getattr(source, key), path, key="")
            for position, host in enumerate(getattr(source, key)):
                yield from _known("host", host, topology.host_names, (*path, position))
        if len(source.receivers) == 1 and source.receivers[0] in source.senders:
            yield Problem(f"{show(source.receivers[0])} sends to no host but itself",
                          path=("background", index, "receivers"), at_key=True,
                          allowed="another host beside it")


def _faults(topology: Topology) -> Iterator[Problem]:
    groups = {name: group for group in topology.hosts for name in group.names}
    for index, fault in enumerate(topology.faults):
        if fault.kind != "slow-gpu":
            continue
        path = ("faults", index, "gpu")
        host, _, number = fault.gpu.partition("/")
        if host not in groups:
            yield from _known("host", host, groups, path)
        elif not (number.isascii() and number.isdigit() and len(number) < 5
                  and int(number) < groups[host].gpus.count):
            yield Problem(f"{show(fault.gpu)} is not a GPU of {host}", path=path, found=fault.gpu,
                          allowed=f"{host}/0 to {host}/{groups[host].gpus.count - 1}")


def _prices(topology: Topology) -> Iterator[Problem]:
    prices = topology.prices
    if prices is None:
        return
    groups = [group.name for group in topology.hosts]
    wrong = [name for name in prices.hosts if name not in groups]
    for name in wrong:
        yield unknown("host group", name, groups, ("prices", "hosts", name))
    for name in () if wrong else groups:
        if name not in prices.hosts:
            yield Problem(f"{name} has no price", path=("prices", "hosts"),
                          allowed=f"one for each of {listing(groups)}")
    for workload in (topology.workload, *(job.workload for job in topology.jobs)):
        if prices.tokens is not None and workload is not None and not _tokens(workload):
            what = show(workload.model) if workload.trace is None else "execution traces"
            yield Problem(f"a sample of {what} has no tokens",
                          path=("prices", "tokens"), allowed="samples instead")


def _tokens(workload: Workload) -> int:
    """Tokens of a sample; 1 where the model is wrong, which is another check's to say."""
    if workload.trace is not None:
        return 0
    try:
        return workload.network.tokens
    except ValueError:
        return 1


def _expect(topology: Topology) -> Iterator[Problem]:
    scenarios = {scenario.name: scenario for scenario in topology.scenarios}
    seen: dict[tuple[str, int, str | None], int] = {}
    for index, expect in enumerate(topology.figures):
        path = ("expect", index)
        if expect.scenario not in scenarios:
            yield unknown("scenario", expect.scenario, scenarios, (*path, "scenario"))
            continue
        if not isinstance(expect, Expect):
            continue
        if expect.job is not None:
            yield from _known("job", expect.job, [job.name for job in topology.jobs],
                              (*path, "job"))
        rows = topology.rows(scenarios[expect.scenario])
        if not any(gpus == expect.gpus and expect.job in (None, job) for job, gpus in rows):
            yield Problem(f"{expect.gpus} GPUs are no row of {show(expect.scenario)}",
                          path=(*path, "gpus"), found=expect.gpus,
                          allowed=listing(dict.fromkeys(str(gpus) for _, gpus in rows)))
        key = (expect.scenario, expect.gpus, expect.job)
        if key in seen:
            yield Problem("a second figure for this row", path=path,
                          allowed=f"one; the first is expect[{seen[key]}]")
        seen.setdefault(key, index)
