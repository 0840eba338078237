"""A topology file out of an InfraGraph infrastructure.

Where the annotations hold the topology file that the infrastructure was made of, and it would be
made of it again, that file is the answer, key by key. Else hosts and fabric are taken from the
graph: instances of devices with ``xpu`` components are hosts, all others with cables are switches,
and the fabric is an explicit one with a cable for each pair of an edge. The inside of a host
counts as far as the simulator knows it: GPUs, their own fabric (``xpu`` joined with another or with
a switch by a link that is NVLink by its name or description), and NICs that have cables.

A GPU's speed comes from its data sheet, by the description of the component; the rate of NVLink
from its link, or from its generation (`NVLINK_BPS`). The command has to give what the file does not
say. The file made has one scenario, of kernel TCP and NCCL's choice, and no workload.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sim.formats.infragraph_export import MADE_FOR, TOPOLOGY, infrastructure_of
from sim.formats.infragraph_schema import (
    MOST,
    VERSION,
    Annotations,
    Component,
    Device,
    Edge,
    Infrastructure,
    Instance,
    Link,
    Part,
    Schema,
    pairs,
    parts,
)
from sim.schema.gpu_kinds import KINDS, kind_of
from sim.schema.input_errors import Problem, TopologyError, listing, problems, show
from sim.schema.load import checked
from sim.schema.source import MAX_NODES, Source, read_input
from sim.schema.units import DURATION, RATE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import TypeVar

    AnySchema = TypeVar("AnySchema", bound=Schema)
    AnyNamed = TypeVar("AnyNamed", Device, Link, Instance, Component)

MOST_BYTES = 1 << 28
MOST_CABLES = MAX_NODES // 3
"""A cable of a topology file is three values or more."""
NVLINK_BPS = {1: 80e9 * 8, 2: 150e9 * 8, 3: 300e9 * 8, 4: 450e9 * 8, 5: 900e9 * 8}
"""Each way of a GPU, by generation: half of the totals of NVIDIA's data sheets of P100, V100, A100,
H100 and B200 (160, 300, 600, 900 and 1,800 GB/s). Published."""
BOND = "lacp-3+4"
"""Sharing of flows by the ports of a NIC without an annotation. Assumed."""
_GENERATION = re.compile(r"nvlink[ _-]?v?([1-5])\b", re.IGNORECASE)
_NVLINK = re.compile(r"nvl|xpu[ _-]?fabric|xgmi", re.IGNORECASE)
_WRONG = re.compile(r"[^A-Za-z0-9._+-]")

Plain = dict[str, Any]
Ends = tuple[Part, ...]
Place = tuple[str, int, Ends]
"""Instance, its number, and the component."""


@dataclass(frozen=True)
class Given:
    """The user's facts on hosts where the file has none."""

    gpu: str | None = None
    """Name of a GPU with a known data sheet."""
    nvlink: str | None = None
    """Rate of a GPU's own fabric, or none."""


def read_infrastructure(path: Path) -> Infrastructure:
    """Read a file of JSON or YAML; raises TopologyError."""
    return _read(path, Infrastructure, "an InfraGraph infrastructure")


def topology_of(path: Path, annotated: Path | None, given: Given) -> tuple[Plain, bool]:
    """The topology file of an infrastructure as plain data, and whether annotations hold it.

    Args:
        path: the infrastructure.
        annotated: its annotations, if there are some.
        given: what the file may leave open.

    Raises TopologyError.
    """
    made = read_infrastructure(path)
    if annotated is not None:
        kept = _kept(annotated, _read(annotated, Annotations, "annotations of InfraGraph"))
        if kept is not None and _same(kept, made, annotated):
            return kept, True
    try:
        return _Reader(made, given).topology(), False
    except Problem as problem:
        raise TopologyError(str(path), problem) from None


def _read(path: Path, model: type[AnySchema], what: str) -> AnySchema:
    data = read_input(path, most_bytes=MOST_BYTES, allowed=what)
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        return Source.parse(data, str(path)).validate(model)
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise TopologyError(str(path), problems(error, plain)[0]) from None


def _kept(path: Path, made: Annotations) -> Plain | None:
    """Return the topology file that the annotations hold, if they hold one."""
    found = {each.attribute: each.value for each in made.graph}
    version = found.get(MADE_FOR, VERSION)
    if version != VERSION:
        raise TopologyError(str(path), Problem(f"annotations for InfraGraph {show(version)}",
                                               path=("graph",), found=version, allowed=VERSION))
    if TOPOLOGY not in found:
        return None
    try:
        plain = json.loads(found[TOPOLOGY])
    except (ValueError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        raise TopologyError(str(path), Problem(f"{TOPOLOGY} is no topology file", path=("graph",),
                                               allowed="the keys of one as JSON"))
    return plain


def _same(kept: Plain, made: Infrastructure, annotated: Path) -> bool:
    """Whether the infrastructure is that of the topology file."""
    text = json.dumps(kept, ensure_ascii=False).encode(errors="replace")
    source = Source.parse(text, str(annotated))
    again = Infrastructure.model_validate(infrastructure_of(checked(source)))
    return bool(_rounded(again.model_dump()) == _rounded(made.model_dump()))


def _rounded(value: Any) -> Any:
    """Plain data with numbers as InfraGraph's own 32-bit floats keep them."""
    if isinstance(value, dict):
        return {key: _rounded(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(child) for child in value]
    return f"{value:.6g}" if isinstance(value, float) else value


class _Reader:
    """Takes hosts and fabric out of a graph; raises Problem."""

    def __init__(self, made: Infrastructure, given: Given) -> None:
        self.made, self.given = made, given
        self.devices = _by_name(made.devices, "devices")
        self.links = _by_name(made.links, "links")
        self.instances = _by_name(made.instances, "instances")
        for number, device in enumerate(made.devices):
            _by_name(device.components, "devices", number, "components")
            _by_name(device.links, "devices", number, "links")
        for number, instance in enumerate(made.instances):
            if instance.device not in self.devices:
                raise Problem(f"there is no device {show(instance.device)}", found=instance.device,
                              path=("instances", number, "device"), names=[*self.devices],
                              allowed=listing([*self.devices]))
        self.names = {name: _WRONG.sub("-", name) for name in self.instances}
        if len({*self.names.values()}) < len(made.instances):
            raise Problem("two instances have one name", path=("instances",),
                          allowed="names that differ in letters, digits and . _ + -")
        self.hosts = [each for each in made.instances if self._count(each, "xpu")]
        if not self.hosts:
            raise Problem("no instance has an xpu", path=("instances",),
                          allowed="a device with a component of the choice xpu")
        self.cables: list[Plain] = []
        self.ports: dict[tuple[str, int], Counter[Part]] = defaultdict(Counter)
        self.rates: dict[tuple[str, str], dict[float, None]] = defaultdict(dict)
        self.latencies: set[float] = set()

    def _count(self, instance: Instance, choice: str) -> int:
        return sum(component.count for component in self.devices[instance.device].components
                   if component.choice == choice)

    def topology(self) -> Plain:
        """The topology file."""
        for number in range(len(self.made.edges)):
            self._edge(number)
        switches = dict.fromkeys(
            end for cable in self.cables for end in (cable["from"], cable["to"])
            if "/" not in end)
        if not switches:
            raise Problem("no edge joins a host with a switch", path=("edges",),
                          allowed="a cable for each NIC")
        name = _WRONG.sub("-", self.made.name).lstrip("-._+")[:64] or "infragraph"
        return {"name": name, "description": self.made.description,
                "hosts": [self._host(each) for each in self.hosts],
                "fabric": self._hosts_latency() | {
                    "devices": [{"name": switch} for switch in switches], "links": self.cables},
                "scenarios": [{"name": "TCP", "stack": "kernel-tcp", "allreduce": "nccl"}]}

    def _hosts_latency(self) -> Plain:
        """The one latency of cables to hosts; the fabric has no place for several."""
        if len(self.latencies) > 1:
            raise Problem("cables to hosts differ in latency", path=("edges",), allowed="one "
                          "latency for all of them")
        if not self.latencies:
            return {}
        return {"latency": DURATION.format(self.latencies.pop())}

    def _edge(self, number: int) -> None:
        try:
            self._cable(self.made.edges[number])
        except Problem as problem:
            raise problem.under("edges", number) from None

    def _cable(self, edge: Edge) -> None:
        if edge.link not in self.links:
            raise Problem(f"there is no link {show(edge.link)}", found=edge.link, path=("link",),
                          names=[*self.links], allowed=listing([*self.links]))
        link = self.links[edge.link]
        rate = _rate(link)
        if rate is None:
            raise Problem(f"link {show(edge.link)} has no bandwidth", path=("link",),
                          allowed="gigabits_per_second or gigabytes_per_second")
        one, other = (list(self._ends(end.instance, end.component, path))
                      for path, end in (("ep1", edge.ep1), ("ep2", edge.ep2)))
        for near, far in pairs(one, other, edge.scheme):
            if near[:2] == far[:2]:  # as in de Bruijn graphs, whose first node follows itself
                continue
            cable: Plain = {"from": self._end(near, rate), "to": self._end(far, rate)}
            if "/" not in cable["from"] and "/" not in cable["to"]:
                cable["rate"] = RATE.format(rate)
            latency = link.physical.latency.seconds
            if latency is not None and "rate" in cable:
                cable["latency"] = DURATION.format(round(latency, 12))
            elif latency is not None:
                self.latencies.add(round(latency, 12))
            self.cables.append(cable)
            if len(self.cables) > MOST_CABLES:
                raise Problem(f"more than {MOST_CABLES:,} cables", allowed="a smaller graph, or a "
                              "topology file with one of the templates")

    def _ends(self, instance: str, component: str, path: str) -> Iterator[Place]:
        taken = 0
        try:
            counts = {name: each.count for name, each in self.instances.items()}
            for (place,) in parts(instance, counts):
                device = self.devices[self.instances[place.name].device]
                found = parts(component, {each.name: each.count for each in device.components})
                taken += len(found)
                if taken > MOST:
                    raise Problem(f"more than {MOST:,} components", allowed="fewer")
                yield from ((place.name, place.number, each) for each in found)
        except Problem as problem:
            raise problem.under(path) from None

    def _end(self, place: Place, rate: float) -> str:
        """Name of an end in the topology file, which takes the next port of a host's NIC."""
        instance, number, found = place
        if not self._count(self.instances[instance], "xpu"):
            one = self.instances[instance].count == 1
            return self.names[instance] if one else f"{self.names[instance]}-{number}"
        nic = _nic_of(self.devices[self.instances[instance].device], found)
        port = self.ports[instance, number][nic]
        self.ports[instance, number][nic] += 1
        self.rates[instance, nic.name][rate] = None
        ending = f".{port}" if port else ""
        return f"{self.names[instance]}-{number}/{_nic_name(nic.name)}{nic.number}{ending}"

    def _host(self, instance: Instance) -> Plain:
        device = self.devices[instance.device]
        xpu = next(each for each in device.components if each.choice == "xpu")
        model = next((text for text in (self.given.gpu, xpu.description, device.name)
                      if text and kind_of(text)), None)
        if model is None:
            raise Problem(f"the data sheet of device {show(device.name)}'s "
                          f"{show(xpu.description or xpu.name)} is not known", path=("devices",),
                          allowed=f"--gpu with one of {', '.join(KINDS)}")
        return {"name": self.names[instance.name], "count": instance.count,
                "gpus": {"count": self._count(instance, "xpu"), "model": model},
                "nvlink": self._nvlink(device), "nics": self._nics(instance)}

    def _nics(self, instance: Instance) -> list[Plain]:
        kinds: dict[str, list[int]] = defaultdict(list)
        ports: dict[str, set[int]] = defaultdict(set)
        for host in range(instance.count):
            for nic, taken in self.ports[instance.name, host].items():
                kinds[nic.name].append(nic.number)
                ports[nic.name].add(taken)
        if not kinds:
            raise Problem(f"no NIC of instance {show(instance.name)} has a cable",
                          path=("instances",), allowed="one edge for each NIC")
        made = []
        for name, numbers in kinds.items():
            rates = list(self.rates[instance.name, name])
            if len(rates) > 1 or len(ports[name]) > 1:
                raise Problem(f"the cables of {show(instance.name)}'s {show(name)} differ in rate "
                              "or number", path=("instances",), allowed="equal NICs of a name")
            made.append({"name": _nic_name(name), "count": max(numbers) + 1,
                         "rate": RATE.format(rates[0])}
                        | ({"ports": each, "bond": BOND} if (each := ports[name].pop()) > 1
                           else {}))
        return made

    def _nvlink(self, device: Device) -> Plain | str:
        """The GPUs' own fabric, by the edges of one of them."""
        if self.given.nvlink is not None:
            return "none" if self.given.nvlink == "none" else {"rate": self.given.nvlink}
        links = {link.name: link for link in device.links}
        choices = {each.name: each.choice for each in device.components}
        for edge in device.edges:
            ends = [re.split(r"[\[.]", end.component)[0] for end in (edge.ep1, edge.ep2)]
            kinds = sorted(choices.get(end, "") for end in ends)
            link = links.get(edge.link, Link(name=edge.link))
            text = f"{link.name} {link.description}"
            if kinds in (["xpu", "xpu"], ["switch", "xpu"]) and _NVLINK.search(text):
                return self._nvlink_rate(device, link, ends, text)
        return "none"

    def _nvlink_rate(self, device: Device, link: Link, ends: list[str], text: str) -> Plain:
        rate, generation = _rate(link), _GENERATION.search(text)
        if rate is not None:
            switches = sum(each.count for each in device.components
                           if each.name in ends and each.choice == "switch")
            rate *= max(switches, 1)
        elif generation is not None:
            rate = NVLINK_BPS[int(generation[1])]
        else:
            raise Problem(f"link {show(link.name)} of device {show(device.name)} has no bandwidth",
                          path=("devices",), allowed="--nvlink with a GPU's rate each way, such as "
                          "300GB/s, or none")
        latency = link.physical.latency.seconds
        return {"rate": RATE.format(rate)} | (
            {} if latency is None else {"latency": DURATION.format(round(latency, 12))})


def _by_name(entries: Sequence[AnyNamed], *path: str | int) -> dict[str, AnyNamed]:
    found: dict[str, AnyNamed] = {}
    for number, each in enumerate(entries):
        if each.name in found:
            raise Problem(f"{show(each.name)} stands twice", path=(*path, number, "name"),
                          allowed="each name once")
        found[each.name] = each
    return found


def _rate(link: Link) -> float | None:
    """The rate in bits/s, rounded to the six digits that a 32-bit float is sure of."""
    rate = link.physical.bandwidth.bits_per_s
    return None if rate is None else float(f"{rate:.6g}")


def _nic_name(component: str) -> str:
    """Name of NICs: a component's own, kept apart from the number that ours end in."""
    plain = _WRONG.sub("-", component)
    return f"{plain}-" if plain[-1:].isdigit() else plain


def _nic_of(device: Device, found: Ends) -> Part:
    """The NIC that a component is, or is a port of."""
    kinds = {each.name: each for each in device.components}
    first = found[0]
    if kinds[first.name].choice != "port":
        return first
    for edge in device.edges:
        counts = {name: each.count for name, each in kinds.items()}
        ends = [parts(end.component, counts) for end in (edge.ep1, edge.ep2)]
        for one, other in (ends, reversed(ends)):
            if kinds[one[0][0].name].choice == "nic":
                for nic, port in pairs(one, list(other), edge.scheme):
                    if port == (first,):
                        return Part(*nic[0])
    return first
