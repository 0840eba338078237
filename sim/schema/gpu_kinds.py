"""Data sheets of GPUs: memory, and FLOP/s by precision, without sparsity.

`kind_of` finds a GPU by the name that a topology file gives it, as nvidia-smi prints it or shorter.
A size in the name counts (``A100-SXM4-40GB``), in GiB; without one a kind that is sold in several
sizes has its largest. Cards for PCIe are kinds of their own (``A100-PCIE-40GB``, ``NVIDIA H100
PCIe``); without a form in the name it is the fastest (SXM). Rates are those of matrix units with
accumulation in fp32; ``fp32`` is that of ordinary units. Confidence: a maker's figure is a bound,
which no program reaches.

``reached`` is the share of it that matrix products reach amid the kernels of a large transformer;
what else a block does is bound by memory (`sim.step.kernels`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

class Reached(NamedTuple):
    """A share and the interval in which it may lie."""

    low: float
    value: float
    high: float


REACHED = Reached(0.5, 0.6, 0.75)
"""Share of the data sheet's rate that matrix products reach where no figure is known: assumed.

Alone, and of the best shape, they reach 0.86 on an A100, 0.80 on an H100, 0.78 on a B200 and 0.60
on an MI300X (github.com/stas00/ml-engineering, compute/accelerator, "Maximum Achievable Matmul
FLOPS"); amid a step on an A100 0.73 (below). That would be 0.7 on an H100, whose clock falls more
under load; 0.6 lies amid the rows of MosaicML's llm-foundry for H100, which it was chosen with.
"""


@dataclass(frozen=True)
class GpuKind:
    """A GPU by its data sheet."""

    name: str
    memory_mib: int
    """Memory in MiB as nvidia-smi (rocm-smi) prints it, hence without what ECC and driver keep."""
    memory_gbs: float
    """Rate of its memory in GB/s by data sheet."""
    tflops: Mapping[str, float] = field(hash=False)
    """Dense TFLOP/s by precision."""
    source: str
    reached: Reached = REACHED
    smaller: tuple[int, float] | None = None
    """GiB of a smaller one with slower memory, and its GB/s."""

    def moved_gbs(self, memory_bytes: int | None) -> float:
        """Rate of the memory of the GPU of this kind that has so much of it."""
        if self.smaller is None or memory_bytes is None:
            return self.memory_gbs
        gib, rate = self.smaller
        return rate if memory_bytes <= gib << 30 else self.memory_gbs


def _rates(fp32: float, tf32: float = 0, half: float = 0, fp8: float = 0, *,
           bf16: bool = True) -> dict[str, float]:
    given = {"fp32": fp32, "tf32": tf32, "bf16": half if bf16 else 0, "fp16": half, "fp8": fp8}
    return {precision: rate for precision, rate in given.items() if rate}


_A100 = _rates(19.5, 156, 312)
_A100_SOURCE = "NVIDIA A100 data sheet, 2021"
_A100_REACHED = Reached(0.7, 0.73, 0.8)
"""Of the A100: a layer of the 22 B model takes 19.0 ms with sequence parallelism on 8 GPUs; less
four allreduces of 101 MB at 230 GB/s (3.1 ms) and the kernels that memory bounds (3.0 ms) that is
2.94 TFLOP in 12.9 ms (Korthikanti et al. 2022, table 4). The collectives' rate is assumed, so
0.7 to 0.8."""
_A100_40 = (40, 1555)
_H100 = _rates(67, 494.7, 989.4, 1978.9)
_MI300 = _rates(163.4, 653.7, 1307.4, 2614.9)

KINDS = {kind.name: kind for kind in (
    GpuKind("P100", 16276, 732, _rates(10.6, half=21.2, bf16=False),
            "NVIDIA Tesla P100 data sheet, 2016"),
    GpuKind("P100 PCIe", 16276, 732, _rates(9.3, half=18.7, bf16=False),
            "NVIDIA Tesla P100 PCIe data sheet, 2016"),
    GpuKind("V100", 32510, 900, _rates(15.7, half=125, bf16=False), "NVIDIA V100 data sheet, 2020"),
    GpuKind("V100 PCIe", 32510, 900, _rates(14, half=112, bf16=False),
            "NVIDIA V100 data sheet, 2020"),
    GpuKind("T4", 15360, 320, _rates(8.1, half=65, bf16=False), "NVIDIA T4 data sheet, 2019"),
    GpuKind("A10", 23028, 600, _rates(31.2, 62.5, 125), "NVIDIA A10 data sheet, 2021"),
    GpuKind("A10G", 23028, 600, _rates(31.5, 35, 70), "NVIDIA A10G data sheet, 2022"),
    GpuKind("A30", 24576, 933, _rates(10.3, 82, 165), "NVIDIA A30 data sheet, 2021"),
    GpuKind("A40", 46068, 696, _rates(37.4, 74.8, 149.7), "NVIDIA A40 data sheet, 2021"),
    GpuKind("A6000", 49140, 768, _rates(38.7, 77.4, 154.8), "NVIDIA RTX A6000 data sheet, 2021"),
    GpuKind("A100", 81920, 2039, _A100, _A100_SOURCE, _A100_REACHED, _A100_40),
    GpuKind("A100 PCIe", 81920, 1935, _A100, _A100_SOURCE, _A100_REACHED, _A100_40),
    GpuKind("A800", 81920, 2039, _A100, "NVIDIA A800 data sheet, 2022", _A100_REACHED),
    GpuKind("RTX 6000 Ada", 49140, 960, _rates(91.1, 182.1, 364.2, 728.5),
            "NVIDIA RTX 6000 Ada data sheet, 2022"),
    GpuKind("RTX PRO 6000", 97887, 1597, _rates(120, 252, 503.8, 1007.6),
            "NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet, 2025"),
    GpuKind("L4", 23034, 300, _rates(30.3, 60, 121, 242), "NVIDIA L4 data sheet, 2023"),
    GpuKind("L40", 46068, 864, _rates(90.5, 90.5, 181, 362), "NVIDIA L40 data sheet, 2023"),
    GpuKind("L20", 46068, 864, _rates(59.8, 59.8, 119.5, 239), "NVIDIA L20 data sheet, 2023"),
    GpuKind("L40S", 46068, 864, _rates(91.6, 183, 362, 733), "NVIDIA L40S data sheet, 2023"),
    GpuKind("RTX 3090", 24576, 936, _rates(35.6, 35.6, 71),
            "NVIDIA Ampere GA102 white paper, 2021"),
    GpuKind("RTX 4090", 24564, 1008, _rates(82.6, 82.6, 165.2, 330.3),
            "NVIDIA Ada white paper, 2022"),
    GpuKind("RTX 5090", 32607, 1792, _rates(104.8, 104.8, 209.5, 419),
            "NVIDIA RTX Blackwell white paper, 2025"),
    GpuKind("H20", 97871, 4000, _rates(44, 74, 148, 296), "NVIDIA H20 data sheet, 2023"),
    GpuKind("H100", 81559, 3350, _H100, "NVIDIA H100 data sheet (SXM), 2023"),
    GpuKind("H100 PCIe", 81559, 2039, _rates(51, 378, 756, 1513),
            "NVIDIA H100 PCIe product brief, 2022"),
    GpuKind("H100 NVL", 95830, 3900, _rates(60, 417.5, 835.5, 1671),
            "NVIDIA H100 NVL data sheet, 2024"),
    GpuKind("H800", 81559, 3350, _H100, "NVIDIA H800 data sheet (SXM), 2023"),
    GpuKind("H200", 143771, 4800, _H100, "NVIDIA H200 data sheet (SXM), 2024"),
    GpuKind("B200", 183359, 7700, _rates(75, 1100, 2250, 4500),
            "NVIDIA HGX B200 data sheet, 2024"),
    GpuKind("GH200", 97871, 4000, _H100, "NVIDIA GH200 data sheet, 2024"),
    GpuKind("B300", 275040, 8000, _rates(75, 1100, 2250, 4500),
            "NVIDIA HGX B300 data sheet, 2025"),
    GpuKind("GB200", 189471, 8000, _rates(80, 1250, 2500, 5000),
            "NVIDIA GB200 NVL72 data sheet, 2024"),
    GpuKind("GB300", 284208, 8000, _rates(80, 1250, 2500, 5000),
            "NVIDIA GB300 NVL72 data sheet, 2025"),
    GpuKind("MI250X", 65520, 1638, _rates(23.9, half=191.5),
            "AMD Instinct MI250X data sheet, 2021; a GPU is one of its two dies, as torch sees it"),
    GpuKind("MI300X", 196592, 5300, _MI300,
            "AMD Instinct MI300X data sheet, 2023"),
    GpuKind("MI325X", 262128, 6000, _MI300, "AMD Instinct MI325X data sheet, 2024"),
    GpuKind("MI350X", 294896, 8000, _rates(144.2, half=2306.9, fp8=4613.7),
            "AMD Instinct MI350X data sheet, 2025"),
    GpuKind("MI355X", 294896, 8000, _rates(157.3, half=2516.6, fp8=5033.2),
            "AMD Instinct MI355X data sheet, 2025"),
)}
"""Kinds by name."""
NVLINK = dict.fromkeys(("A10", "A10G", "L20", "L4", "L40", "L40S", "RTX 4090", "RTX 5090",
                        "RTX 6000 Ada", "RTX PRO 6000", "T4"), (0.0, 0.0)) | dict.fromkeys(
    ("H100", "H200", "H20", "GH200"), (360.0, 3e-6)) | dict.fromkeys(
    ("B200", "B300", "GB200", "GB300"), (720.0, 3e-6)) | dict.fromkeys(
    ("A800", "H800"), (160.0, 3e-6)) | {"A100": (240.0, 3e-6), "V100": (132.0, 5e-6)}
"""What NCCL's rings reach over NVLink, in GB/s of a GPU each way, and its latency in seconds, by
kind; 0 for a kind without NVLink. Kinds that are sold with and without (bridges of PCIe cards, P100
as SXM and PCIe) are not here, nor are AMD's.

NCCL counts 20 GB/s a link of A100, 20.6 of H100 and 40.1 of B200 (SM80_NVLINK_BW and following,
src/graph/topo.h), of which a GPU has 12, 18 and 18, and 8 of A800 and H800; V100 has 6, here at 22
as in the shipped files. Measured on one host: 234 GB/s on A100, 361 to 366 on H200
(sim/validation/cases). Latencies are assumed."""
_SIZE = re.compile(r"\b(\d{1,4}) ?Gi?B\b", re.IGNORECASE)


@lru_cache(maxsize=256)
def kind_of(model: str) -> GpuKind | None:
    """The kind that a GPU's name means; the longest name of several."""
    words = "-".join(re.split(r"[^A-Z0-9]+", _SIZE.sub(" ", model.upper())))
    found = [kind for name, kind in KINDS.items()
             if re.search(rf"(?:^|-){name.upper().replace(' ', '-?')}(?:-|$)", words)]
    return max(found, key=lambda kind: len(kind.name), default=None)


def nvlink_of(model: str) -> tuple[float, float] | None:
    """NVLink of the GPU with this name as `NVLINK` has it; None if that is not known."""
    kind = kind_of(model)
    return None if kind is None else NVLINK.get(kind.name)


def memory_of(model: str) -> int | None:
    """Bytes of memory of the GPU with this name; None if it is not known.

    A size of more than twice the kind's is not its own: GH200 480GB names its CPU's memory.
    """
    size = _SIZE.search(model)
    kind = kind_of(model)
    if kind is None:
        return None
    named = int(size[1]) << 30 if size else 0
    return named if 0 < named <= kind.memory_mib << 21 else kind.memory_mib << 20
