"""XML files for NCCL: the NICs of a host, and the rings inside it.

NCCL reads NCCL_TOPO_FILE and fills in what is missing. It accepts a net's speed and latency from
the file, which helps with drivers that report none (virtio, ENA: NCCL then assumes 10 Gb/s). The
file must be complete: a CPU without its attributes ends the job. So `with_nets` changes a file that
NCCL itself wrote on such a host (NCCL_TOPO_DUMP_FILE) and invents nothing.

NCCL_GRAPH_FILE (not in NCCL's documentation) gives the rings inside a host: GPUs in order, and the
NIC of each channel. It says nothing about the order of hosts, which is that of ranks.

Read from src/graph/xml.cc, topo.cc and search.cc of NVIDIA/nccl 2.30.7. A value has at most 253
characters and an element 16 attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RING_ID, RING_PATTERN = 0, 4
"""Pattern number of rings (NCCL_TOPO_PATTERN_RING in src/include/graph.h)."""
ATTRIBUTES_MOST, VALUE_MOST = 16, 253


class NcclFileError(ValueError):
    """A file is not what NCCL writes; the message is one sentence."""


@dataclass(frozen=True)
class Net:
    """Speed and latency that NCCL is given for a NIC."""

    mbps: int
    latency_us: float | None = None
    """None: NCCL's own figures, 2.7 to 14 us by protocol; a latency here replaces them all."""


def with_nets(dump: str, nets: Mapping[str, Net]) -> str:
    """Put speeds and latencies into a topology that NCCL dumped, by the names of its nets.

    Ranks, which NCCL would take as they stand for another job's, are left out.
    """
    try:
        system = ElementTree.fromstring(dump)
    except ElementTree.ParseError as error:
        raise NcclFileError(f"it is no XML: {error}") from error
    if system.tag != "system" or system.get("version") != "1":
        raise NcclFileError(f"it begins with <{system.tag}> and not with NCCL's <system "
                            'version="1">')
    found = {net.get("name", ""): net for net in system.iter("net")}
    missing = [name for name in nets if name not in found]
    if missing:
        raise NcclFileError(f"it has no net {missing[0]!r}, only {', '.join(found) or 'none'}")
    for name, net in nets.items():
        found[name].set("speed", str(net.mbps))
        if net.latency_us is not None:
            found[name].set("latency", f"{net.latency_us:g}")
    for gpu in system.iter("gpu"):
        gpu.attrib.pop("rank", None)
    full = next((node for node in system.iter() if len(node.attrib) > ATTRIBUTES_MOST), None)
    if full is not None:
        raise NcclFileError(f"<{full.tag}> has {len(full.attrib)} attributes, and NCCL reads "
                            f"{ATTRIBUTES_MOST}")
    return _text(system)


def ring_graph(rings: Sequence[tuple[int, Sequence[int]]], *, gigabytes_per_s: float,
               nvlink: bool) -> str:
    """Give the rings of a host: of each channel its NIC, and its GPUs from where it enters on.

    A ring leaves a host by the NIC that it enters by. ``gigabytes_per_s`` is that of a channel.
    """
    graphs = ElementTree.Element("graphs", version="1")
    speed = f"{gigabytes_per_s:g}"
    graph = ElementTree.SubElement(graphs, "graph", {
        "id": str(RING_ID), "pattern": str(RING_PATTERN), "crossnic": "0",
        "nchannels": str(len(rings)), "speedintra": speed, "speedinter": speed,
        "latencyinter": "0", "typeintra": "NVL" if nvlink else "PHB", "typeinter": "PHB",
        "samechannels": str(int(len({tuple(gpus) for _, gpus in rings}) == 1))})
    for nic, gpus in rings:
        channel = ElementTree.SubElement(graph, "channel")
        ElementTree.SubElement(channel, "net", dev=f"{nic:x}")  # dev is read as hexadecimal
        for gpu in gpus:
            ElementTree.SubElement(channel, "gpu", dev=f"{gpu:x}")
        ElementTree.SubElement(channel, "net", dev=f"{nic:x}")
    return _text(graphs)


def _text(node: ElementTree.Element, depth: int = 0) -> str:
    """Write an element for NCCL's reader, which is not a full XML parser.

    One space before each attribute and none before the end; quotes and entities it does not know.
    """
    for value in node.attrib.values():
        if len(value) > VALUE_MOST or set(value) & set("\"&<>"):
            raise NcclFileError(f"<{node.tag}> has a value that NCCL cannot read: {value[:40]!r}")
    head = " " * 2 * depth + f"<{node.tag}" + "".join(
        f' {name}="{value}"' for name, value in node.attrib.items())
    if not len(node):
        return f"{head}/>\n"
    inner = "".join(_text(child, depth + 1) for child in node)
    return f"{head}>\n{inner}{' ' * 2 * depth}</{node.tag}>\n"
