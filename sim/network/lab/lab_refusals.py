"""Errors for the keys of a file that a laboratory cannot carry."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING

import numpy as np

from lab.wiring import why_unusable
from sim.network.interface import NetworkError
from sim.schema.input_errors import Problem
from sim.schema.nccl_defaults import uses_sockets
from sim.schema.parameters import StackSet, derives_from

if TYPE_CHECKING:
    from sim.network.interface import Site
    from sim.schema.input_errors import Path

MOST_HOSTS, MOST_SWITCHES, MOST_GPUS, MOST_LINKS = 16, 64, 64, 512
BPS_OF_CORE = 1e9
"""Rate of one core through sockets, links and switches of the laboratory, by a wide margin."""


LINUX = "linux"
"""The hash that switches of a laboratory have."""


CONGESTION_CONTROLS = pathlib.Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


def notes_of_site(site: Site) -> list[str]:
    """Deviations from the file in a run that can be carried."""
    function, fabric = site.cluster.topology.fabric.hash.function, site.cluster.fabric
    chooses = (np.diff(fabric.next_hops.ptr) > 1).any()
    if function == LINUX or not chooses or site.style.routing == "spray":
        return []
    return [f"The lab's switches hash as Linux does, not by {function}: flows meet on other links "
            "than in flow and packet, unless fabric.hash.function is linux."]


def stack_of(site: Site) -> str:
    """``tcp`` or ``harp``: what moves the bytes of a host stack."""
    return "tcp" if uses_sockets(site.stack.name, site.cluster.topology.stacks) else "harp"


def check_site(site: Site, scale: float) -> None:
    """Raise NetworkError or TopologyError where a laboratory cannot be set up for this."""
    reason = why_unusable()
    if reason:
        raise NetworkError(f"--fidelity lab {reason}")
    topology, fabric = site.cluster.topology, site.cluster.fabric
    for what, have, most in (
            ("hosts", site.cluster.hosts, MOST_HOSTS), ("GPUs", site.cluster.gpus, MOST_GPUS),
            ("switches", len(fabric.switches), MOST_SWITCHES),
            ("links", len(fabric.link_src) // 2, MOST_LINKS)):
        if have > most:
            raise topology.error(Problem(f"{have:,} {what} are too many for a laboratory",
                                         path=("hosts",), allowed=f"at most {most} {what}, or "
                                         "--fidelity flow or packet"))
    for path, found, allowed in _unsupported(site):
        raise topology.error(Problem(f"--fidelity lab cannot do {found}", path=path,
                                     allowed=allowed))
    out = fabric.link_src >= len(fabric.switches)
    total_bps = float(fabric.link_bps[out].sum()) * scale
    most_bps = BPS_OF_CORE * (os.cpu_count() or 1)
    if total_bps > most_bps:
        raise topology.error(Problem(
            f"all NICs together send {total_bps / 1e9:.3g} Gb/s at a scale of {scale:g}, and this "
            f"machine is good for {most_bps / 1e9:.3g} Gb/s", path=("lab", "scale"),
            allowed=f"at most {scale * most_bps / total_bps:.2g}"))


def _unsupported(site: Site) -> list[tuple[Path, str, str]]:
    topology, style = site.cluster.topology, site.style
    found: list[tuple[Path, str, str]] = []
    if site.background:
        found.append((("background",), "background traffic",
                      "none in the scenario, or --fidelity flow or packet"))
    if style.routing == "plan" and topology.fabric.hash.function != LINUX:
        found.append((("fabric", "hash", "function"),
                      f"routing plan for switches that hash by {topology.fabric.hash.function}",
                      f"{LINUX}, which kernels do"))
    bonds = {style.bond or nic.bond for group in topology.hosts for nic in group.nics
             if nic.ports > 1}
    if "dynamic" in bonds and stack_of(site) == "tcp":
        found.append((("hosts",), "a dynamic bond",
                      "bonds of none, lacp-2+3 or lacp-3+4 under TCP"))
    controls = CONGESTION_CONTROLS.read_text("utf-8").split()
    if style.congestion is not None and style.congestion not in controls:
        found.append((("scenarios",), f"congestion {style.congestion}, which this kernel lacks",
                      " or ".join(sorted(controls))))
    if site.selects:
        found.append((("scenarios",), "top-k, for which it has no GPUs",
                      "a scenario without LIGHT_TOPK_ALLREDUCE"))
    if topology.vpc is not None and topology.vpc.overlay is not None:
        found.append((("vpc", "overlay"), "an overlay", "a vpc without overlay"))
    if topology.vpc is not None and topology.vpc.burst is not None:
        found.append((("vpc", "burst"), "a burst", "a vpc without burst"))
    real = stack_of(site) == "tcp" or derives_from(site.stack.name, "harp", topology.stacks,
                                                   "stacks", StackSet)
    if not real:
        found.append((("scenarios",), f"stack {site.stack.name}",
                      "a stack that runs here: kernel-tcp, harp, or one with either as its base"))
    return found
