"""Whether the fabric fits the hosts: sizes of a template, ends and reach of explicit links."""

from collections.abc import Iterator

from sim.schema.errors import Path, Problem, listing, show
from sim.schema.fabric import Clos3, DualTor, Explicit, FabricLink, LeafSpine, Rail
from sim.schema.faults import link_ends
from sim.schema.model import Topology

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
