"""Hosts out of NCCL's topology file (``NCCL_TOPO_DUMP_FILE``, ``NCCL_TOPO_FILE``).

The file describes one host as NCCL saw it: ``cpu`` elements (NUMA nodes) hold ``pci`` ones, which
hold ``gpu`` with ``nvlink``, or ``nic`` with ``net`` (NVIDIA/nccl, src/graph/xml.cc). All hosts are
taken to be like it, and to hang on one switch that never blocks: the file knows nothing of what is
between hosts. AMD's RCCL writes the same as version 2, with ``xgmi`` for ``nvlink`` and ``gcn``
beside ``sm`` (ROCm/rccl, src/graph/xml.cc).

A GPU's kind follows from the ``device`` of its PCIe element (`MODEL_OF_DEVICE`), or else, in NCCL's
files, from ``sm``, its compute capability, where one kind with a data sheet is meant
(`KIND_OF_SM`); a link's rate is NCCL's or RCCL's own (`NVLINK_BPS`, `XGMI_BPS`). NICs have the
order of ``dev``, and a kind for each ``speed``, in Mb/s; ``keep="0"`` marks those that are not
used.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from sim.schema.gpu_kinds import KINDS, kind_of
from sim.schema.input_errors import Problem, TopologyError, show
from sim.schema.source import read_input
from sim.schema.units import RATE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sim.formats.infragraph_import import Given

MOST_BYTES = 1 << 24
NVLINK_BPS = {60: 18.0, 70: 20.0, 80: 20.0, 86: 12.0, 90: 20.6, 100: 40.1}
"""GB/s each way of one link by compute capability, the next lower one's where it is not named:
SM60_NVLINK_BW to SM100_NVLINK_BW of src/graph/topo.h, NVIDIA/nccl 2.27. Published."""
XGMI_BPS = {"90a": 36.0, "910": 36.0, "94": 48.0, "95": 48.0, "": 24.0}
"""GB/s each way of one link by the beginning of the GPU's ``gcn``, without ``gfx``:
MI200_XGMI_WIDTH (which older versions know as 910), GFX94X_XGMI_WIDTH, GFX95X_XGMI_WIDTH and
VEGA_XGMI_WIDTH of src/graph/topo.h, ROCm/rccl 2.22. Published."""
LINKS = ("nvlink", "xgmi")
NVIDIA, AMD = "0x10de", "0x1002"
MODEL_OF_DEVICE = {NVIDIA: {
    0x15f8: "P100 PCIe", 0x15f9: "P100", 0x1db1: "V100 16GB", 0x1db4: "V100 PCIe 16GB",
    0x1db5: "V100 32GB", 0x1db6: "V100 PCIe 32GB", 0x1db8: "V100 32GB", 0x1eb8: "T4",
    0x20b0: "A100 40GB", 0x20b1: "A100 PCIe 40GB", 0x20b2: "A100 80GB", 0x20b5: "A100 PCIe 80GB",
    0x20b7: "A30", 0x20bd: "A800 40GB", 0x20f1: "A100 PCIe 40GB", 0x20f3: "A800 80GB",
    0x2204: "RTX 3090", 0x2230: "A6000", 0x2235: "A40", 0x2236: "A10", 0x2237: "A10G",
    0x2321: "H100 NVL", 0x2324: "H800", 0x2329: "H20", 0x2330: "H100", 0x2331: "H100 PCIe",
    0x2335: "H200", 0x2342: "GH200", 0x2684: "RTX 4090", 0x26b1: "RTX 6000 Ada", 0x26b5: "L40",
    0x26b7: "L20", 0x26b9: "L40S", 0x26ba: "L20", 0x27b8: "L4", 0x2901: "B200", 0x2941: "GB200",
    0x2b85: "RTX 5090", 0x2bb5: "RTX PRO 6000", 0x3182: "B300", 0x31c2: "GB300", 0x31c3: "GB300"},
    AMD: {
    0x7408: "MI250X", 0x740c: "MI250X", 0x74a1: "MI300X", 0x74b5: "MI300X", 0x74a5: "MI325X",
    0x74b9: "MI325X", 0x75a0: "MI350X", 0x75b0: "MI350X", 0x75a3: "MI355X", 0x75b3: "MI355X"}}
"""A GPU by its vendor's number for its PCIe device (pci-ids.ucw.cz, list of August 2026).
Published. Those without a data sheet of their own in `KINDS` (H200 NVL, H100 of 94 GB, MI300A) are
left out."""
KIND_OF_SM = {60: "P100", 70: "V100", 75: "T4", 90: "H100", 100: "B200"}
"""A kind by compute capability (CUDA programming guide, appendix on compute capabilities), for
files and devices without a known number. Assumed. A100 and A800 (80) and all of 86 and 89 differ
too much in memory or links to be guessed."""
PCIE_ENCODING = 128 / 130
"""Of PCI Express from 3.0, 8 GT/s, on (PCI Express Base Specification 3.0, section 4.2.2)."""
_SPEED = re.compile(r"(?<!\d)(\d{1,6}(?:\.\d{1,6})?) ?GT/s")
_XML = re.compile(rb"(?:\xef\xbb\xbf)?\s*<[?!\w]")

Plain = dict[str, Any]


class _Device(NamedTuple):
    """A GPU or network device, and where it is."""

    element: ElementTree.Element
    pci: ElementTree.Element | None
    """The PCIe device that it is, or belongs to."""
    node: int
    """Its NUMA node."""
    order: int


def topology_of(path: Path, given: Given, hosts: int) -> Plain:
    """Topology file of ``hosts`` such hosts as plain data; raises TopologyError."""
    root = _root(path)
    try:
        devices = list(_devices(root))
        gpus = sorted((one for one in devices if one.element.tag == "gpu"),
                      key=lambda one: one.order)
        nets = sorted((one for one in devices if one.element.tag == "net"
                       and one.element.get("keep") != "0"), key=lambda one: one.order)
        _check_one_host(root, gpus)
        if not gpus or not nets:
            what = "GPU" if not gpus else "network device"
            raise Problem(f"the file has no {what}", allowed="a host with GPUs and NICs, as "
                          "NCCL_TOPO_DUMP_FILE of a job on several hosts writes it")
        group = {"name": "host", "count": hosts,
                 "gpus": {"count": len(gpus), "model": _model(gpus, given)},
                 "nvlink": _nvlink(gpus, given), **_pcie(gpus)}
        ordered = list(_kinds(nets))
        group["nics"] = [{"name": "nic" if len(ordered) == 1 else f"nic{number}-",
                          "count": len(nics), "rate": RATE.format(speed)}
                         for number, (speed, nics) in enumerate(ordered)]
        group["numa_nodes"] = max(len(root.findall("cpu")), 1)
        group["affinity"] = {
            "gpu_nodes": [gpu.node for gpu in gpus],
            "nic_nodes": [nic.node for _, nics in ordered for nic in nics]}
    except Problem as problem:
        raise TopologyError(str(path), problem) from None
    return {"name": "nccl", "hosts": [group], "fabric": {"template": "single-switch"},
            "scenarios": [{"name": "TCP", "stack": "kernel-tcp", "allreduce": "nccl"}]}


def is_nccl(data: bytes) -> bool:
    """Whether a file is XML, which no other format here is."""
    return re.match(_XML, data) is not None


def _root(path: Path) -> ElementTree.Element:
    data = read_input(path, most_bytes=MOST_BYTES, allowed="NCCL's topology file")
    if b"<!" in data.replace(b"<!--", b""):  # no entities, which could grow without bound
        raise TopologyError(str(path), Problem("a document type or entity in the file",
                                               allowed="elements alone, as NCCL writes them"))
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise TopologyError(str(path), Problem(f"is no XML: {error}",
                                               allowed="NCCL's topology file")) from None
    if root.tag != "system" or root.get("version", "1") not in ("1", "2"):
        raise TopologyError(str(path), Problem(
            f"found <{root.tag} version={show(root.get('version'))}>",
            allowed='<system version="1">, or RCCL\'s "2"'))
    return root


def _check_one_host(root: ElementTree.Element, gpus: list[_Device]) -> None:
    """Refuse the file of several hosts, as of those that share NVLink, and a GPU twice in it."""
    hashes = {cpu.get("host_hash") for cpu in root.findall("cpu")}
    if len(hashes) > 1:
        raise Problem(f"the CPUs are of {len(hashes)} hosts, by their host_hash",
                      allowed="the file of one host")
    for one, other in pairwise(gpus):
        if one.order == other.order:
            raise Problem(f"two GPUs have the dev {one.order}", allowed="each once")


def _devices(root: ElementTree.Element) -> Iterator[_Device]:
    """GPUs and network devices, whatever they hang on."""
    for node, cpu in enumerate(root.findall("cpu")):
        waiting: list[tuple[ElementTree.Element, ElementTree.Element | None]] = [(cpu, None)]
        while waiting:
            element, pci = waiting.pop()
            if element.tag in ("gpu", "net"):
                yield _Device(element, pci, node, _whole(element, "dev"))
                continue
            below = element if element.tag == "pci" else pci
            waiting += [(child, below) for child in element]


def _whole(element: ElementTree.Element, name: str, default: str | None = None) -> int:
    text = element.get(name, default)
    if text is None or not re.fullmatch(r"\d{1,9}", text):
        found = "no" if text is None else f"{show(text)} as"
        raise Problem(f"<{element.tag}> has {found} {name}", allowed="a whole number")
    return int(text)


def _model(gpus: list[_Device], given: Given) -> str:
    if given.gpu is not None and kind_of(given.gpu):
        return given.gpu
    found = {_whole(gpu.element, "sm", "0") for gpu in gpus}
    models = {_model_of(gpu.pci) for gpu in gpus}
    if len(found) > 1 or len(models) > 1:
        raise Problem(f"the GPUs differ in {'sm' if len(found) > 1 else 'device'}",
                      allowed="equal GPUs")
    sm, gcn = found.pop(), _gcn(gpus[0])
    model = models.pop() or (KIND_OF_SM.get(sm) if gcn is None else None)
    if given.gpu is not None or model is None:
        unknown = f"GPUs of {f'sm {sm}' if gcn is None else f'gfx{gcn}'}"
        raise Problem(f"the data sheet of {given.gpu or unknown} is not known",
                      found=given.gpu, names=[*KINDS] if given.gpu else (),
                      allowed=f"--gpu with one of {', '.join(KINDS)}")
    return model


def _model_of(pci: ElementTree.Element | None) -> str | None:
    """A GPU's model by the number of its PCIe device, None where that is not known."""
    known = MODEL_OF_DEVICE.get("" if pci is None else pci.get("vendor", ""), {})
    number = re.fullmatch("0x([0-9a-f]{4})", "" if pci is None else pci.get("device", ""))
    return known.get(int(number[1], 16)) if number else None


def _gcn(gpu: _Device) -> str | None:
    """The architecture of an AMD GPU without ``gfx``, such as 942; None of another maker's."""
    gcn = gpu.element.get("gcn")
    return None if gcn is None else gcn.removeprefix("gfx").split(":")[0]


def _nvlink(gpus: list[_Device], given: Given) -> Plain | str:
    """The GPUs' own fabric: of the one with the fewest links."""
    if given.nvlink is not None:
        return "none" if given.nvlink == "none" else {"rate": given.nvlink}
    links = min(sum(_whole(link, "count", "1") for link in gpu.element if link.tag in LINKS)
                for gpu in gpus)
    each_bps = _link_bps(gpus[0])
    if not links or each_bps is None:
        return "none"
    return {"rate": RATE.format(round(links * each_bps))}


def _link_bps(gpu: _Device) -> float | None:
    """Bits/s each way of a link between GPUs, None where there are none of the kind."""
    gcn, sm = _gcn(gpu), _whole(gpu.element, "sm", "0")
    if gcn is not None:
        return XGMI_BPS[max((known for known in XGMI_BPS if gcn.startswith(known)), key=len)] * 8e9
    known = max((known for known in NVLINK_BPS if known <= sm and (known != 86 or sm < 90)),
                default=None)
    return None if known is None else NVLINK_BPS[known] * 8e9


def _pcie(gpus: list[_Device]) -> Plain:
    """The slowest path of a GPU, where the file has all of them."""
    rates = [_pci_bps(gpu.pci) for gpu in gpus]
    slowest = min(rates)
    return {"pcie": {"rate": RATE.format(round(slowest))}} if slowest else {}


def _pci_bps(pci: ElementTree.Element | None) -> float:
    """Bits/s of a PCIe link, 0 where it is not known."""
    if pci is None:
        return 0.0
    match = _SPEED.search(pci.get("link_speed", ""))
    width = _whole(pci, "link_width", "0")
    if match is None or not width:
        return 0.0
    transfers = float(match[1])
    encoding = PCIE_ENCODING if transfers >= 8 else 0.8
    return math.floor(transfers * 1e9 * width * encoding)


def _kinds(nets: list[_Device]) -> Iterator[tuple[float, list[_Device]]]:
    """Network devices by speed, the first one's first."""
    speeds: dict[int, list[_Device]] = {}
    for net in nets:
        speeds.setdefault(_whole(net.element, "speed"), []).append(net)
    for speed, several in speeds.items():
        if not speed:
            raise Problem("<net> has the speed 0", allowed="Mb/s, above 0")
        yield speed * 1e6, several
